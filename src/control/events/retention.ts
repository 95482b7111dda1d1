import { inTransaction } from '../../core/db/pool.ts'
import type { Services } from '../../core/process/services.ts'
import { deleteExpired, lockExpiredEvents } from './store.ts'

const DAY_MS = 86_400_000
const BATCH = 1000

/**
 * Deletes events older than EVENT_RETENTION_DAYS, in batches; one that is not dispatched is never deleted. Deliveries
 * keep what they send. For a daily tick; a second run at the same time does no harm.
 * @param stopping ends it after the batch at hand
 * @returns how many went
 */
export async function pruneEvents(services: Services, stopping?: AbortSignal): Promise<number> {
  const before = new Date(services.clock.now().getTime() - services.config.EVENT_RETENTION_DAYS * DAY_MS)
  let total = 0
  while (!stopping?.aborted) {
    const deleted = await inTransaction(services.pool, async db => {
      const ids = await lockExpiredEvents(db, before, BATCH)
      if (ids.length > 0) await deleteExpired(db, ids)
      return ids.length
    })
    total += deleted
    if (deleted < BATCH) break
  }
  return total
}
