import type { Services } from '#core/base/services.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { deleteOrphanedCounters, deleteQuotaCounters } from './store.ts'

const DAY_MS = 86_400_000
const RETENTION_DAYS = 40

/** Deletes counters of windows older than 40 days and of deleted quotas. Returns their number. */
export async function pruneCounters(
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping?: AbortSignal,
): Promise<number> {
  const before = new Date(clock.now().getTime() - RETENTION_DAYS * DAY_MS)
  const old = await deleteInBatches(limit => deleteQuotaCounters(pool, before, limit), stopping)
  return old + (await deleteInBatches(limit => deleteOrphanedCounters(pool, limit), stopping))
}
