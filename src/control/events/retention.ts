import type { Services } from '#core/base/services.ts'
import { expiresBefore, lockPastMonths, maintainMonths } from '#core/db/months.ts'
import { inTransaction } from '#core/db/pool.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { deleteExpiredEvents, eventMonths, lockExpiredEvents } from './store.ts'

const BATCH = 1000

/**
 * Deletes dispatched events older than EVENT_RETENTION_DAYS, whole months where it can, and retains envelopes that deliveries
 * refer to. Makes the months ahead. Runs daily; concurrent runs are safe.
 * @param stopping stops after the current batch
 * @returns the number of deleted events
 */
export async function pruneEvents(services: Services, stopping?: AbortSignal): Promise<number> {
  const before = expiresBefore(services, services.config.EVENT_RETENTION_DAYS)
  const dropped = await maintainMonths(services, eventMonths, before, stopping)
  const deleted = await deleteInBatches(
    limit =>
      inTransaction(services.pool, async tx => {
        await lockPastMonths(tx)
        const ids = await lockExpiredEvents(tx, before, limit)
        if (ids.length > 0) await deleteExpiredEvents(tx, ids)
        return ids.length
      }),
    stopping,
    BATCH,
  )
  return dropped + deleted
}
