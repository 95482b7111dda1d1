import type { Services } from '#core/base/services.ts'
import { inTransaction } from '#core/db/pool.ts'
import { deleteFinishedDeliveries, deleteOrphanedEnvelopes, lockOrphanedEnvelopes } from './store.ts'

const DAY_MS = 86_400_000
const BATCH = 1000

/**
 * Deletes finished deliveries older than WEBHOOK_DELIVERY_RETENTION_DAYS, in batches, and orphaned retained envelopes.
 * Queued deliveries are never deleted. Runs daily; concurrent runs are safe.
 * @param stopping stops after the current batch
 * @returns the number of deleted deliveries
 */
export async function pruneDeliveries(services: Services, stopping?: AbortSignal): Promise<number> {
  const before = new Date(services.clock.now().getTime() - services.config.WEBHOOK_DELIVERY_RETENTION_DAYS * DAY_MS)
  let total = 0
  while (!stopping?.aborted) {
    const deleted = await deleteFinishedDeliveries(services.pool, before, BATCH)
    total += deleted
    if (deleted < BATCH) break
  }
  await pruneEnvelopes(services, stopping)
  return total
}

async function pruneEnvelopes({ pool }: Services, stopping?: AbortSignal): Promise<void> {
  for (let after: string | undefined = ''; after !== undefined && !stopping?.aborted; )
    after = await inTransaction(pool, async db => {
      const ids = await lockOrphanedEnvelopes(db, after as string, BATCH)
      if (ids.length > 0) await deleteOrphanedEnvelopes(db, ids)
      return ids.at(BATCH - 1)
    })
}
