import { setTimeout as sleep } from 'node:timers/promises'
import { databaseErrorKind, isPoolClosed } from './database-errors.ts'

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 2000

/** How long the work of a claim repeats a write that the database does not take, before the claim is requeued. */
const PATIENCE_MS = 60_000

/** The pause before the next try of a statement that has failed `failures` times. */
export const retryPause = (failures: number): number =>
  Math.min(FIRST_PAUSE_MS * 2 ** Math.min(failures, 16), LONGEST_PAUSE_MS)

/**
 * Runs work again while it fails because the database is unavailable. The work may have been committed although it failed:
 * it must find that out by itself, by a fence or by being idempotent.
 * @param options.signal no further try once it is aborted
 * @param options.withinMs no further try after this time, default a minute
 * @throws the error of the last try
 */
export async function retryWhileUnavailable<T>(
  work: () => Promise<T>,
  { signal, withinMs = PATIENCE_MS }: { signal?: AbortSignal; withinMs?: number } = {},
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
