import { raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { SchemaError, type SchemaOf, type SchemaProblem, schemaChecks } from '../../core/json-schema/checks.ts'
import type { Services } from '../../core/process/services.ts'
import type { MetadataSchemaRow, SchemaResourceType } from './model.ts'
import { governingSchema } from './store.ts'

const MAX_MESSAGE = 2000

type Metadata = Record<string, unknown> | null | undefined

/** A write to check: what would be stored under a normalized path; null metadata counts as an empty object. */
export type MetadataWrite = {
  project_id: string
  resource_type: SchemaResourceType
  /** Null while the resource has none: nothing governs it. */
  path: string | null
  metadata: Metadata
}

/** How JSON Schema is read for metadata. */
const rules = { strict: true }

const schemaOf = ({ project_id, schema }: Pick<MetadataSchemaRow, 'project_id' | 'schema'>): SchemaOf => ({
  project: project_id,
  text: schema,
  rules,
})

/**
 * Refuses what is no usable schema, in the transaction that writes it.
 * @throws VALIDATION_FAILED, RunFirst
 */
export async function requireUsableSchema(
  services: Services,
  made: Pick<MetadataSchemaRow, 'project_id' | 'schema'>,
): Promise<void> {
  try {
    await schemaChecks(services).checkInTransaction(schemaOf(made))
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    raiseInvalid({ code: 'INVALID_VALUE', path: 'schema', message: error.message })
  }
}

/** Every directory that holds a normalized path, the root and the path itself included. */
function prefixesOf(path: string): string[] {
  const prefixes = ['/']
  for (let end = path.indexOf('/', 1); end !== -1; end = path.indexOf('/', end + 1)) prefixes.push(path.slice(0, end))
  if (path !== '/') prefixes.push(path)
  return prefixes
}

/** What is wrong with metadata under a declaration, in one sentence; null when nothing is. */
function violation(schema: MetadataSchemaRow, problems: readonly SchemaProblem[]): string | null {
  if (problems.length === 0) return null
  const details = problems.map(({ pointer, message }) => `${pointer || '(root)'} ${message}`).join('; ')
  const text = `metadata does not satisfy the schema declared for '${schema.path_prefix}': ${details}`
  return text.length > MAX_MESSAGE ? `${text.slice(0, MAX_MESSAGE - 1).toWellFormed()}…` : text
}

/** A schema that was usable when it was written may not be on another machine, or with another version of the engine. */
async function unlessUnusable<T>(find: Promise<T>, otherwise: (problem: SchemaProblem) => T): Promise<T> {
  try {
    return await find
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    return otherwise({ keyword: '$schema', pointer: '', message: `cannot be checked: the schema ${error.message}` })
  }
}

/**
 * What is wrong with each of some values under a declaration; null where nothing is.
 * @throws SERVICE_NOT_READY, and the reason of `signal`
 */
export async function schemaViolations(
  services: Services,
  schema: MetadataSchemaRow,
  given: readonly Metadata[],
  signal?: AbortSignal,
): Promise<(string | null)[]> {
  const values = given.map(metadata => metadata ?? {})
  const problems = await unlessUnusable(
    schemaChecks(services).problems(schemaOf(schema), values, { signal }),
    problem => values.map(() => [problem]),
  )
  return problems.map(found => violation(schema, found))
}

/** The declaration that governs a write; null when there is none. */
export async function governingDeclaration(
  db: Queryable,
  { project_id, resource_type, path }: Omit<MetadataWrite, 'metadata'>,
): Promise<MetadataSchemaRow | null> {
  return path === null ? null : governingSchema(db, project_id, resource_type, prefixesOf(path))
}

/**
 * Refuses metadata that breaks what is declared for its path: the declaration with the longest prefix governs alone. For
 * writes that send metadata, and for those that change the path; in the transaction of the write. One query.
 * @throws VALIDATION_FAILED, RunFirst
 */
export async function checkAgainstSchema(services: Services, tx: Queryable, write: MetadataWrite): Promise<void> {
  const schema = await governingDeclaration(tx, write)
  if (!schema) return
  const checks = schemaChecks(services)
  const problems = await unlessUnusable(
    checks.problemsInTransaction(schemaOf(schema), write.metadata ?? {}),
    problem => [problem],
  )
  const message = violation(schema, problems)
  if (message === null) return
  const { id, resource_type, path_prefix } = schema
  raise('VALIDATION_FAILED', {
    message,
    meta: {
      problems: [{ code: 'INVALID_VALUE', path: 'metadata', message }],
      metadata_schema_id: id,
      resource_type,
      path_prefix,
    },
  })
}
