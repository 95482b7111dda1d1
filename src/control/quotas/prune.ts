import type { Services } from '../../core/process/services.ts'
import { deleteCounters, deleteOrphanedCounters } from './store.ts'

const DAY_MS = 86_400_000
const KEPT_DAYS = 40
const BATCH = 5000

/** Deletes counters of windows older than 40 days and those whose quota is gone. Returns how many. */
export async function pruneCounters(
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping?: AbortSignal,
): Promise<number> {
  const before = new Date(clock.now().getTime() - KEPT_DAYS * DAY_MS)
  let deleted = 0
  for (const some of [() => deleteCounters(pool, before, BATCH), () => deleteOrphanedCounters(pool, BATCH)]) {
    for (;;) {
      const count = await some()
      deleted += count
      if (count < BATCH || stopping?.aborted) break
    }
  }
  return deleted
}
