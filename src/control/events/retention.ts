import type { Services } from '#core/base/services.ts'
import { inTransaction } from '#core/db/pool.ts'
import { deleteExpiredEvents, lockExpiredEvents } from './store.ts'

const DAY_MS = 86_400_000
const BATCH = 1000

/**
 * Deletes dispatched events older than EVENT_RETENTION_DAYS, in batches, and retains envelopes that deliveries refer
 * to. Runs daily; concurrent runs are safe.
 * @param stopping stops after the current batch
 * @returns the number of deleted events
 */
export async function pruneEvents(services: Services, stopping?: AbortSignal): Promise<number> {
  const before = new Date(services.clock.now().getTime() - services.config.EVENT_RETENTION_DAYS * DAY_MS)
  let total = 0
  while (!stopping?.aborted) {
    const deleted = await inTransaction(services.pool, async db => {
      const ids = await lockExpiredEvents(db, before, BATCH)
      if (ids.length > 0) await deleteExpiredEvents(db, ids)
      return ids.length
    })
    total += deleted
    if (deleted < BATCH) break
  }
  return total
}
