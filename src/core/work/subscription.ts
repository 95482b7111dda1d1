import { retryWhileUnavailable } from '../db/retry.ts'

/** How long a read is retried while the database is unavailable. */
const UNAVAILABLE_MS = 5000

/**
 * Subscribes to changes of a value before they can happen, so that none is missed. `wait` reads the value after each
 * call of `onChange` and at least every `pollMs`. It returns the last value once `isOver` is true, the time is over or
 * the caller is gone. `known` is an initial value that needs no read. No connection is held while waiting.
 * @param options.subscribe returns a function that unsubscribes
 */
export function subscribeUntil<T extends object | null>(options: {
  subscribe: (onChange: () => void) => () => void
  read: () => Promise<T>
  isOver: (value: T) => boolean
  pollMs: number
}): { wait(options: { closed: AbortSignal; withinMs: number; known?: T }): Promise<T>; cancel(): void } {
  const { subscribe, read, isOver, pollMs } = options
  let notified = false
  let wake = () => {}
  const cancel = subscribe(() => {
    notified = true
    wake()
  })
  return {
    cancel,
    async wait({ closed, withinMs, known }) {
      const deadline = Date.now() + withinMs
      const onClosed = () => wake()
      closed.addEventListener('abort', onClosed, { once: true })
      try {
        let value = known === undefined || notified ? undefined : known
        for (;;) {
          if (value === undefined) {
            notified = false
            value = await retryWhileUnavailable(read, { signal: closed, withinMs: UNAVAILABLE_MS })
          }
          const remaining = deadline - Date.now()
          if (isOver(value) || remaining <= 0 || closed.aborted) return value
          value = undefined
          if (notified) continue
          await new Promise<void>(resolve => {
            const timer = setTimeout(resolve, Math.min(pollMs, remaining))
            wake = () => {
              clearTimeout(timer)
              resolve()
            }
          })
        }
      } finally {
        closed.removeEventListener('abort', onClosed)
        cancel()
      }
    },
  }
}
