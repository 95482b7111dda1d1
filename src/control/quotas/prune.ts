import { inBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { deleteCounters, deleteOrphanedCounters } from './store.ts'

const DAY_MS = 86_400_000
const KEPT_DAYS = 40

/** Deletes counters of windows older than 40 days and those whose quota is gone. Returns how many. */
export async function pruneCounters(
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping?: AbortSignal,
): Promise<number> {
  const before = new Date(clock.now().getTime() - KEPT_DAYS * DAY_MS)
  const old = await inBatches(limit => deleteCounters(pool, before, limit), stopping)
  return old + (await inBatches(limit => deleteOrphanedCounters(pool, limit), stopping))
}
