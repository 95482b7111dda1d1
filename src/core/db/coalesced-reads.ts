import { setImmediate } from 'node:timers/promises'
import { withoutTenantLimit } from './tenant-context.ts'

/**
 * Reads by key that those who ask at the same time make together. A read that is under way is not joined but followed by
 * one more, so that everybody sees what was committed before they asked. The first one waits for who else asks in the same
 * turn of the event loop.
 */
export function coalescedReads<T>(): (key: string, read: () => Promise<T>) => Promise<T> {
  const running = new Map<string, Promise<void>>()
  const next = new Map<string, Promise<T>>()
  return (key, read) => {
    const waiting = next.get(key)
    if (waiting) return waiting
    const result = (running.get(key) ?? setImmediate()).then(() => {
      next.delete(key)
      const made = withoutTenantLimit(read)
      const end = () => void running.delete(key)
      running.set(key, made.then(end, end))
      return made
    })
    next.set(key, result)
    return result
  }
}
