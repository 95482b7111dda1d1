import type { z } from 'zod'
import { kinds } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { schemaViolations } from './check.ts'
import type { MetadataAudit, MetadataSchemaRow } from './model.ts'
import { listGoverned } from './store.ts'

/** Rows that one statement reads, and those of them that are checked at once. */
const BATCH = 200
const PART = 20
/** Checking everything in a large project takes several seconds; nobody waits longer. */
const MAX_MS = 10_000

const READ = { document: 'documents:GetDocument', file: 'files:GetFile' } as const

/**
 * The first stored resources, in the order of their paths, that a declaration would refuse now; without metadata they
 * are checked as an empty object. Resources that the caller may not read are passed over. It stops at `limit` of them, after
 * ten seconds, and when the client leaves.
 */
export async function auditSchema(
  { db, allowed, request, services }: Pick<Context, 'db' | 'allowed' | 'request' | 'services'>,
  schema: MetadataSchemaRow,
  limit: number,
): Promise<z.output<typeof MetadataAudit>> {
  const kind = kinds.get(schema.resource_type)
  const over = AbortSignal.timeout(MAX_MS)
  const signal = AbortSignal.any([over, request.closed])
  const data: { resource_id: string; path: string; error: string }[] = []
  let scanned = 0
  let after: string | null = null
  for (;;) {
    const rows = await listGoverned(db, schema, after, BATCH)
    for (let at = 0; at < rows.length; at += PART) {
      const seen = rows.slice(at, at + PART).filter(row => allowed(READ[schema.resource_type], { kind, row }))
      let errors: (string | null)[]
      try {
        const given = seen.map(({ metadata }) => metadata)
        errors = await schemaViolations(services, schema, given, signal)
      } catch (error) {
        if (!signal.aborted) throw error
        return { data, scanned }
      }
      for (const [index, { id, path }] of seen.entries()) {
        scanned++
        const error = errors[index]
        if (error !== null) data.push({ resource_id: id, path, error })
        if (data.length === limit) return { data, scanned }
      }
    }
    if (rows.length < BATCH) return { data, scanned }
    after = rows[rows.length - 1].path
  }
}
