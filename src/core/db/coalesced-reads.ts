import { setImmediate } from 'node:timers/promises'
import { withoutTenantLimit } from './tenant-context.ts'

/**
 * Returns a function that merges concurrent reads of the same key. A running read is not joined but followed by one
 * more, so that each caller sees everything committed before its call. The first read starts at the end of the turn of
 * the event loop.
 */
export function coalescedReads<T>(): (key: string, read: () => Promise<T>) => Promise<T> {
  const running = new Map<string, Promise<void>>()
  const pending = new Map<string, Promise<T>>()
  return (key, read) => {
    const joined = pending.get(key)
    if (joined) return joined
    const result = (running.get(key) ?? setImmediate()).then(() => {
      pending.delete(key)
      const reading = withoutTenantLimit(read)
      const onSettled = () => void running.delete(key)
      running.set(key, reading.then(onSettled, onSettled))
      return reading
    })
    pending.set(key, result)
    return result
  }
}
