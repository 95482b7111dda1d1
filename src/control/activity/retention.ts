import type { Services } from '#core/base/services.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { deleteActivity } from './store.ts'

const DAY_MS = 86_400_000

/**
 * Deletes entries older than ACTIVITY_RETENTION_DAYS (0 disables it), in batches. Returns the number of deleted
 * entries.
 */
export async function pruneActivity(
  { config, clock, pool }: Pick<Services, 'config' | 'clock' | 'pool'>,
  stopping?: AbortSignal,
): Promise<number> {
  if (config.ACTIVITY_RETENTION_DAYS === 0) return 0
  const before = new Date(clock.now().getTime() - config.ACTIVITY_RETENTION_DAYS * DAY_MS)
  return deleteInBatches(limit => deleteActivity(pool, before, limit), stopping)
}
