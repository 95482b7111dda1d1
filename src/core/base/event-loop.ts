/** Returns a function, for calls between small parts of work, that yields to the event loop after each `maxMs` of work. */
export function eventLoopYielder(maxMs = 20): () => Promise<void> {
  let since = performance.now()
  return async () => {
    if (performance.now() - since < maxMs) return
    await new Promise(setImmediate)
    since = performance.now()
  }
}

/**
 * Settles with `work`, or with undefined after `ms`. After CPU starvation or a suspension of this process, answers that have
 * arrived are read before the time is over.
 */
export async function settledWithin<T>(ms: number, work: Promise<T>): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<undefined>(resolve => {
    timer = setTimeout(() => setImmediate(() => setImmediate(() => resolve(undefined))), ms)
  })
  return Promise.race([work, late]).finally(() => clearTimeout(timer))
}
