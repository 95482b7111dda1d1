import { z } from 'zod'
import { allOf, type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { atOrBelow, outsideReserved } from '../paths.ts'
import { type MetadataSchemaRow, metadataSchemaKind, type SchemaResourceType } from './model.ts'

/** Every declaration of a project, oldest first (index metadata_schemas_project). */
export const schemasOf = (db: Queryable, projectId: string): Promise<readonly MetadataSchemaRow[]> =>
  db.any(metadataSchemaKind.sql`select * from metadata_schemas where project_id = ${projectId} order by created_at, id`)

/**
 * The declaration with the longest of some prefixes of one path, which governs alone; null when there is none (index
 * metadata_schemas_selector).
 */
export const governingSchema = (
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

const governed = sql.type(
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
 * The next resources that a declaration governs in the order of their paths, those of a nested declaration left out
 * (indexes files_path and documents_path; each nested prefix is looked up in metadata_schemas_selector once).
 */
export const listGoverned = (db: Queryable, schema: MetadataSchemaRow, after: string | null, limit: number) =>
  db.any(governed`
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
