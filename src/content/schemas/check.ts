import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import {
  type CheckOptions,
  SchemaError,
  type SchemaOf,
  type SchemaProblem,
  schemaChecks,
} from '#core/json-schema/checks.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { MetadataSchemaRow, SchemaResourceType } from './model.ts'
import { findSchemaByPrefix } from './store.ts'

const MAX_MESSAGE = 2000
/** Longest wait of a transaction for a schema thread: enough for concurrent writes of a project with fast schemas. */
const TRANSACTION_WAIT_MS = 20

type Metadata = Record<string, unknown> | null | undefined

/** A write to validate, at a normalized path; null metadata counts as an empty object. */
export type MetadataWrite = {
  project_id: string
  resource_type: SchemaResourceType
  /** Null for a resource without a path, to which no schema applies. */
  path: string | null
  metadata: Metadata
}

const rules = { strict: true }

const schemaOf = ({ project_id, schema }: Pick<MetadataSchemaRow, 'project_id' | 'schema'>): SchemaOf => ({
  project: project_id,
  text: schema,
  rules,
})

/**
 * Checks that a schema can be compiled, before the transaction that writes it.
 * @throws VALIDATION_FAILED, SERVICE_NOT_READY
 */
export async function requireUsableSchema(
  services: Services,
  row: Pick<MetadataSchemaRow, 'project_id' | 'schema'>,
): Promise<void> {
  const [message] = await schemaChecks(services).refusals([schemaOf(row)])
  if (message !== null) raiseInvalid({ code: 'INVALID_VALUE', path: 'schema', message })
}

/** Returns all ancestors of a normalized path, including the root and the path. */
function prefixesOf(path: string): string[] {
  const prefixes = ['/']
  for (let end = path.indexOf('/', 1); end !== -1; end = path.indexOf('/', end + 1)) prefixes.push(path.slice(0, end))
  if (path !== '/') prefixes.push(path)
  return prefixes
}

/** Formats the problems of metadata under a schema as one message; returns null without problems. */
function formatViolation(schema: MetadataSchemaRow, problems: readonly SchemaProblem[]): string | null {
  if (problems.length === 0) return null
  const details = problems.map(({ pointer, message }) => `${pointer || '(root)'} ${message}`).join('; ')
  const text = `metadata violates the schema of '${schema.path_prefix}': ${details}`
  return text.length > MAX_MESSAGE ? `${text.slice(0, MAX_MESSAGE - 1).toWellFormed()}…` : text
}

/**
 * Returns the violation message of each value under a schema, or null for valid values. A stored schema may be unusable
 * on another machine or with another version of the engine: then all values violate it.
 * @throws SERVICE_NOT_READY, and the reason of `options.signal`
 */
export async function schemaViolations(
  services: Services,
  schema: MetadataSchemaRow,
  metadata: readonly Metadata[],
  options?: CheckOptions,
): Promise<(string | null)[]> {
  const values = metadata.map(value => value ?? {})
  try {
    const problems = await schemaChecks(services).problems(schemaOf(schema), values, options)
    return problems.map(found => formatViolation(schema, found))
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    const problem = { keyword: '$schema', pointer: '', message: `cannot be checked: the schema ${error.message}` }
    return values.map(() => formatViolation(schema, [problem]))
  }
}

/** Returns the schema that governs a write, or null. */
export async function findGoverningSchema(
  db: Queryable,
  { project_id, resource_type, path }: Omit<MetadataWrite, 'metadata'>,
): Promise<MetadataSchemaRow | null> {
  return path === null ? null : findSchemaByPrefix(db, project_id, resource_type, prefixesOf(path))
}

/**
 * Validates metadata by the schema with the longest prefix of its path, in the transaction of a write that sends
 * metadata or changes the path. One query. A check that has to wait longer for a schema thread does so outside the
 * transaction, so that a project whose schemas are slow holds no connections.
 * @throws VALIDATION_FAILED, SERVICE_NOT_READY
 */
export async function checkAgainstSchema(services: Services, tx: Tx, write: MetadataWrite): Promise<void> {
  const schema = await findGoverningSchema(tx, write)
  if (!schema) return
  const check = (options?: CheckOptions) => schemaViolations(services, schema, [write.metadata], options)
  const [message] = await check({ waitMs: TRANSACTION_WAIT_MS }).catch(error => {
    if (!(error instanceof AppError) || error.code !== 'SERVICE_NOT_READY') throw error
    return tx.runOutside(JSON.stringify([schema, write.metadata]), check)
  })
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
