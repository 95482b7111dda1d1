import { setImmediate } from 'node:timers/promises'
import type { z } from 'zod'
import { kinds } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { violationOf } from './judge.ts'
import type { MetadataAudit, MetadataSchemaRow } from './model.ts'
import { governedBy } from './store.ts'

const BATCH = 200
/** A large project is looked through in several seconds; nobody waits longer. */
const MAX_MS = 10_000

const READ = { document: 'documents:GetDocument', file: 'files:GetFile' } as const

/**
 * The first stored resources, in the order of their paths, that a declaration would refuse now; without metadata they
 * are judged as an empty bag. Resources that the caller may not read are passed over. It stops at `limit` of them, after
 * ten seconds, and when the client leaves.
 */
export async function auditSchema(
  { db, allowed, request }: Pick<Context, 'db' | 'allowed' | 'request'>,
  schema: MetadataSchemaRow,
  limit: number,
): Promise<z.output<typeof MetadataAudit>> {
  const kind = kinds.get(schema.resource_type)
  const until = performance.now() + MAX_MS
  const data: { resource_id: string; path: string; error: string }[] = []
  let scanned = 0
  let after: string | null = null
  for (;;) {
    const rows = await governedBy(db, schema, after, BATCH)
    for (const row of rows) {
      if (performance.now() > until || request.closed.aborted) return { data, scanned }
      if (!allowed(READ[schema.resource_type], { kind, row })) continue
      scanned++
      const error = violationOf(schema, row.metadata)
      if (error === null) continue
      data.push({ resource_id: row.id, path: row.path, error })
      if (data.length === limit) return { data, scanned }
    }
    if (rows.length < BATCH) return { data, scanned }
    after = rows[rows.length - 1].path
    // Other requests are served between two batches.
    await setImmediate()
  }
}
