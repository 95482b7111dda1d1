/** How long work may hold the process before others are looked after. */
const HELD_MS = 20

/** For work in many small parts: called between two of them, it lets the process look after others once it was held for long. */
export function breather(): () => Promise<void> {
  let since = performance.now()
  return async () => {
    if (performance.now() - since < HELD_MS) return
    await new Promise(setImmediate)
    since = performance.now()
  }
}
