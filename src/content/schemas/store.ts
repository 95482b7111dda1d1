import { z } from 'zod'
import { allOf, type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { atOrBelow, outsideReserved } from '../paths.ts'
import { type MetadataSchemaRow, metadataSchemaKind, type SchemaResourceType } from './model.ts'

/** Lists all schemas of a project, oldest first. Index metadata_schemas_project. */
export const listSchemas = (db: Queryable, projectId: string): Promise<readonly MetadataSchemaRow[]> =>
  db.any(metadataSchemaKind.sql`select * from metadata_schemas where project_id = ${projectId} order by created_at, id`)

/** Returns the schema with the longest of the given path prefixes, or null. Index metadata_schemas_selector. */
export const findSchemaByPrefix = (
  db: Queryable,
  projectId: string,
  resourceType: SchemaResourceType,
  prefixes: readonly string[],
): Promise<MetadataSchemaRow | null> =>
  db.maybeOne(metadataSchemaKind.sql`
    select * from metadata_schemas
    where project_id = ${projectId} and resource_type = ${resourceType}
      and path_prefix = any(${sql.array([...prefixes], 'text')})
    order by length(path_prefix) desc limit 1`)

const governedRow = sql.type(
  z.object({
    id: z.string(),
    project_id: z.string(),
    path: z.string(),
    tags: z.record(z.string(), z.string()),
    metadata: z.record(z.string(), z.unknown()).nullable(),
  }),
)

const tables: Record<SchemaResourceType, Fragment> = {
  document: sql.fragment`documents t`,
  file: sql.fragment`files t`,
}

/**
 * Lists the resources that a schema governs after a path, in order of path, without resources of nested schemas.
 * Indexes files_path and documents_path; metadata_schemas_selector once per nested prefix.
 */
export const listGoverned = (db: Queryable, schema: MetadataSchemaRow, after: string | null, limit: number) =>
  db.any(governedRow`
    select t.id, t.project_id, t.path, t.tags, t.metadata
    from ${tables[schema.resource_type]}
    where ${allOf([
      sql.fragment`t.project_id = ${schema.project_id}`,
      sql.fragment`t.path is not null`,
      after !== null && sql.fragment`t.path > ${after}`,
      atOrBelow(sql.fragment`t.path`, schema.path_prefix),
      outsideReserved(sql.fragment`t.path`),
    ])}
      and not exists (
        select 1 from metadata_schemas n
        where n.project_id = t.project_id and n.resource_type = ${schema.resource_type}
          and length(n.path_prefix) > length(${schema.path_prefix}::text)
          and (t.path = n.path_prefix or starts_with(t.path, n.path_prefix || '/')))
    order by t.path limit ${limit}`)
