/** Returns a function, for calls between small parts of work, that yields to the event loop after each `maxMs` of work. */
export function eventLoopYielder(maxMs = 20): () => Promise<void> {
  let since = performance.now()
  return async () => {
    if (performance.now() - since < maxMs) return
    await new Promise(setImmediate)
    since = performance.now()
  }
}
