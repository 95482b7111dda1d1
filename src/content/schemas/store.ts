import { UniqueIntegrityConstraintViolationError } from 'slonik'
import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { all, type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { atOrBelow, outsideReserved } from '../paths.ts'
import { MetadataSchemaRow, type ResourceType } from './model.ts'

const row = sql.type(MetadataSchemaRow)

type NewSchema = Pick<MetadataSchemaRow, 'id' | 'project_id' | 'resource_type' | 'path_prefix' | 'schema'>

/** Raises NAME_CONFLICT when another declaration has the selector (index metadata_schemas_selector). */
async function selecting<T>(
  made: Pick<NewSchema, 'resource_type' | 'path_prefix'>,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof UniqueIntegrityConstraintViolationError)) throw error
    const { resource_type, path_prefix } = made
    return raise('NAME_CONFLICT', {
      message: `A schema of the project governs ${resource_type} metadata under ${path_prefix} already`,
      meta: { resource_type, path_prefix },
    })
  }
}

/** Raises NAME_CONFLICT when the selector is taken. */
export const insertSchema = (db: Queryable, made: NewSchema): Promise<MetadataSchemaRow> =>
  selecting(made, () =>
    db.one(row`
      insert into metadata_schemas (id, project_id, resource_type, path_prefix, schema)
      values (${made.id}, ${made.project_id}, ${made.resource_type}, ${made.path_prefix}, ${made.schema})
      returning *`),
  )

/** Writes the changeable columns of a row that is locked. Raises NAME_CONFLICT when the selector is taken. */
export const updateSchema = (db: Queryable, next: MetadataSchemaRow): Promise<MetadataSchemaRow> =>
  selecting(next, () =>
    db.one(row`
      update metadata_schemas set path_prefix = ${next.path_prefix}, schema = ${next.schema}, updated_at = now()
      where id = ${next.id} returning *`),
  )

export const deleteSchema = (db: Queryable, id: string): Promise<unknown> =>
  db.query(sql.unsafe`delete from metadata_schemas where id = ${id}`)

/** Every declaration of a project, oldest first (index metadata_schemas_project). */
export const schemasOf = (db: Queryable, projectId: string): Promise<readonly MetadataSchemaRow[]> =>
  db.any(row`select * from metadata_schemas where project_id = ${projectId} order by created_at, id`)

/**
 * The declaration with the longest of some prefixes of one path, which governs alone; null when there is none (index
 * metadata_schemas_selector).
 */
export const governingSchema = (
  db: Queryable,
  projectId: string,
  resourceType: ResourceType,
  prefixes: readonly string[],
): Promise<MetadataSchemaRow | null> =>
  db.maybeOne(row`
    select * from metadata_schemas
    where project_id = ${projectId} and resource_type = ${resourceType}
      and path_prefix = any(${sql.array([...prefixes], 'text')})
    order by length(path_prefix) desc limit 1`)

const Governed = z.object({
  id: z.string(),
  project_id: z.string(),
  path: z.string(),
  tags: z.record(z.string(), z.string()),
  metadata: z.record(z.string(), z.unknown()).nullable(),
})
/** A stored resource that a declaration governs. */
export type Governed = z.output<typeof Governed>

const tables: Record<ResourceType, Fragment> = {
  document: sql.fragment`documents t`,
  file: sql.fragment`files t`,
}

/**
 * The next resources that a declaration governs in the order of their paths, those of a nested declaration left out
 * (indexes files_path and documents_path; each nested prefix is looked up in metadata_schemas_selector once).
 */
export const governedBy = (
  db: Queryable,
  schema: MetadataSchemaRow,
  after: string | null,
  limit: number,
): Promise<readonly Governed[]> =>
  db.any(sql.type(Governed)`
    select t.id, t.project_id, t.path, t.tags, t.metadata
    from ${tables[schema.resource_type]}
    where ${all([
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
