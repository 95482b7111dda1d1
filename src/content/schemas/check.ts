import { raise } from '../../core/api/errors.ts'
import { SchemaError, type SchemaProblem, schemaProblems } from '../../core/api/json-schema.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { type MetadataSchemaRow, type ResourceType, schemaRules } from './model.ts'
import { governingSchema } from './store.ts'

const MAX_MESSAGE = 2000

/** A write to judge: what would be stored under a normalized path; null metadata counts as an empty bag. */
export type Judged = {
  project_id: string
  resource_type: ResourceType
  /** Null while the resource has none: nothing governs it. */
  path: string | null
  metadata: Record<string, unknown> | null | undefined
}

/** Every directory that holds a normalized path, the root and the path itself included. */
function prefixesOf(path: string): string[] {
  const prefixes = ['/']
  for (let end = path.indexOf('/', 1); end !== -1; end = path.indexOf('/', end + 1)) prefixes.push(path.slice(0, end))
  if (path !== '/') prefixes.push(path)
  return prefixes
}

/** What is wrong with a bag under a declaration, in one sentence; null when nothing is. */
export function violationOf(schema: MetadataSchemaRow, metadata: Judged['metadata']): string | null {
  const problems = problemsUnder(schema, metadata ?? {})
  if (problems.length === 0) return null
  const details = problems.map(({ pointer, message }) => `${pointer || '(root)'} ${message}`).join('; ')
  const text = `metadata does not satisfy the schema declared for '${schema.path_prefix}': ${details}`
  return text.length > MAX_MESSAGE ? `${text.slice(0, MAX_MESSAGE - 1).toWellFormed()}…` : text
}

function problemsUnder(schema: MetadataSchemaRow, metadata: Record<string, unknown>): SchemaProblem[] {
  try {
    return schemaProblems(schema.schema, metadata, schemaRules)
  } catch (error) {
    // It was usable when it was written, on a machine with more time or another version of the engine.
    if (!(error instanceof SchemaError)) throw error
    return [{ keyword: '$schema', pointer: '', message: `cannot be judged: the schema ${error.message}` }]
  }
}

/** The declaration that governs a write and what is wrong with it, both null when nothing governs it or it is fine. */
export async function findViolation(
  db: Queryable,
  { project_id, resource_type, path, metadata }: Judged,
): Promise<{ schema: MetadataSchemaRow; error: string } | null> {
  if (path === null) return null
  const schema = await governingSchema(db, project_id, resource_type, prefixesOf(path))
  if (!schema) return null
  const error = violationOf(schema, metadata)
  return error === null ? null : { schema, error }
}

/**
 * Refuses metadata that breaks what is declared for its path (content, 11.2): the declaration with the longest prefix
 * governs alone. For writes that send metadata, and for those that change the path; in the transaction of the write. One
 * query. Raises VALIDATION_FAILED.
 */
export async function judgeMetadata(tx: Queryable, judged: Judged): Promise<void> {
  const violation = await findViolation(tx, judged)
  if (!violation) return
  const { id, resource_type, path_prefix } = violation.schema
  raise('VALIDATION_FAILED', {
    message: violation.error,
    meta: {
      problems: [{ code: 'INVALID_VALUE', path: 'metadata', message: violation.error }],
      metadata_schema_id: id,
      resource_type,
      path_prefix,
    },
  })
}
