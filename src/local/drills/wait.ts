import { setTimeout as sleep } from 'node:timers/promises'

/** Something that a drill waits for did not progress, which breaks the promise `resumes`. */
export class StalledError extends Error {}

/**
 * Waits until nothing is open.
 * @param open counts it
 * @throws StalledError if the number has not fallen for `limitMs`. The total time has no limit, because it depends on the machine
 */
export async function waitUntilNone(
  what: string,
  open: () => number | Promise<number>,
  { limitMs = 120_000, pauseMs = 500 }: { limitMs?: number; pauseMs?: number } = {},
): Promise<void> {
  let fewest = Infinity
  let progressedAt = Date.now()
  for (;;) {
    const count = await open()
    if (count === 0) return
    if (count < fewest) {
      fewest = count
      progressedAt = Date.now()
    }
    if (Date.now() - progressedAt > limitMs) throw new StalledError(`${what}: no progress within ${limitMs / 1000} s`)
    await sleep(pauseMs)
  }
}
