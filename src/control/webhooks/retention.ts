import { inTransaction } from '../../core/db/pool.ts'
import type { Services } from '../../core/process/services.ts'
import { deleteFinished, deleteOrphanedTexts, lockOrphanedTexts } from './store.ts'

const DAY_MS = 86_400_000
const BATCH = 1000

/**
 * Deletes finished deliveries older than WEBHOOK_DELIVERY_RETENTION_DAYS, in batches; a queued one is never deleted. With
 * them go the texts of events that were retained for deliveries that are gone now.
 * For a daily tick; a second run at the same time does no harm.
 * @param stopping ends it after the batch at hand
 * @returns how many deliveries went
 */
export async function pruneDeliveries(services: Services, stopping?: AbortSignal): Promise<number> {
  const before = new Date(services.clock.now().getTime() - services.config.WEBHOOK_DELIVERY_RETENTION_DAYS * DAY_MS)
  let total = 0
  while (!stopping?.aborted) {
    const deleted = await deleteFinished(services.pool, before, BATCH)
    total += deleted
    if (deleted < BATCH) break
  }
  await pruneEnvelopes(services, stopping)
  return total
}

async function pruneEnvelopes({ pool }: Services, stopping?: AbortSignal): Promise<void> {
  for (let after: string | undefined = ''; after !== undefined && !stopping?.aborted; )
    after = await inTransaction(pool, async db => {
      const ids = await lockOrphanedTexts(db, after as string, BATCH)
      if (ids.length > 0) await deleteOrphanedTexts(db, ids)
      return ids.at(BATCH - 1)
    })
}
