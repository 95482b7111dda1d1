import { settledWithin } from './event-loop.ts'
import type { Logger } from './log.ts'
import { loopsRestarted } from './metrics.ts'

/** Shortest time without progress that counts: on a busy machine a run takes long. */
const MIN_STALL_MS = 10_000

/** Thrown for a run of a loop that was abandoned. */
export class LoopStalledError extends Error {}

/**
 * Runs a loop once. A run that does not end within two periods of the loop is abandoned and counted, and the loop continues
 * with its next run; the abandoned one may still end, so its effects must be idempotent or fenced.
 * @throws LoopStalledError when the run was abandoned
 */
export async function runLoopOnce<T>(loop: string, periodMs: number, work: () => Promise<T>): Promise<T> {
  const ended = await settledWithin(
    Math.max(2 * periodMs, MIN_STALL_MS),
    work().then(value => ({ value })),
  )
  if (ended) return ended.value
  loopsRestarted.inc({ loop })
  throw new LoopStalledError(`${loop} made no progress for two periods and was restarted`)
}

/** Returns a function that runs a loop once, unless a run is in progress. `work` handles its own errors. */
export function exclusiveLoop(
  loop: string,
  { periodMs, log }: { periodMs: number; log: Pick<Logger, 'error'> },
  work: () => Promise<unknown>,
): () => Promise<void> {
  let running: Promise<void> | undefined
  const run = async () => {
    try {
      await runLoopOnce(loop, periodMs, work)
    } catch (error) {
      log.error({ err: error, loop }, 'loop run failed')
    } finally {
      running = undefined
    }
  }
  return () => {
    running ??= run()
    return running
  }
}
