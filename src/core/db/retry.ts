import { setTimeout as sleep } from 'node:timers/promises'
import { databaseErrorKind, isPoolClosed } from './database-errors.ts'

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 2000

/** How long a worker repeats a write while the database is unavailable, before it requeues the claim. */
const DEFAULT_WITHIN_MS = 60_000

/** Returns the delay before the next try of a statement that has failed `failures` times. */
export const retryPause = (failures: number): number =>
  Math.min(FIRST_PAUSE_MS * 2 ** Math.min(failures, 16), LONGEST_PAUSE_MS)

/**
 * Repeats `work` while it fails because the database is unavailable. A failed try may have been committed, so `work`
 * must be fenced or idempotent.
 * @param options.signal stops retrying once aborted
 * @param options.withinMs stops retrying after this time, default one minute
 * @throws the error of the last try
 */
export async function retryWhileUnavailable<T>(
  work: () => Promise<T>,
  { signal, withinMs = DEFAULT_WITHIN_MS }: { signal?: AbortSignal; withinMs?: number } = {},
): Promise<T> {
  const deadline = performance.now() + withinMs
  for (let failures = 1; ; failures++) {
    try {
      return await work()
    } catch (error) {
      const isOver = signal?.aborted || performance.now() >= deadline
      if (databaseErrorKind(error) !== 'unavailable' || isPoolClosed(error) || isOver) throw error
      await sleep(retryPause(failures), undefined, { signal }).catch(() => {})
    }
  }
}
