import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Repeats a poll until it returns a result, for `withinMs` at most. The last poll is at the end of the time.
 * @param options.doubles whether each pause is twice the pause before
 * @returns the result, null after the time
 */
export async function pollUntil<T>(
  poll: () => Promise<T | null>,
  { withinMs, pauseMs, doubles = false }: { withinMs: number; pauseMs: number; doubles?: boolean },
): Promise<T | null> {
  const deadline = performance.now() + withinMs
  for (let pause = pauseMs; ; pause *= doubles ? 2 : 1) {
    const result = await poll()
    if (result !== null) return result
    const remainingMs = deadline - performance.now()
    if (remainingMs <= 0) return null
    await sleep(Math.max(1, Math.min(pause, remainingMs)))
  }
}
