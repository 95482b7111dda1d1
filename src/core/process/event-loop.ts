/**
 * For work in many small parts: called between two of them, it lets the process look after others once it was held for so long.
 */
export function eventLoopYielder(heldMs = 20): () => Promise<void> {
  let since = performance.now()
  return async () => {
    if (performance.now() - since < heldMs) return
    await new Promise(setImmediate)
    since = performance.now()
  }
}
