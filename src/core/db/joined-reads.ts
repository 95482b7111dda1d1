/**
 * Reads by key that those who ask at the same time make together. A read that is under way is not joined but followed by
 * one more, so that everybody sees what was committed before they asked.
 */
export function joinedReads<T>(): (key: string, read: () => Promise<T>) => Promise<T> {
  const running = new Map<string, Promise<void>>()
  const next = new Map<string, Promise<T>>()
  const begin = (key: string, read: () => Promise<T>): Promise<T> => {
    const result = read()
    const end = () => void running.delete(key)
    running.set(key, result.then(end, end))
    return result
  }
  return (key, read) => {
    const waiting = next.get(key)
    if (waiting) return waiting
    const before = running.get(key)
    if (!before) return begin(key, read)
    const result = before.then(() => {
      next.delete(key)
      return begin(key, read)
    })
    next.set(key, result)
    return result
  }
}
