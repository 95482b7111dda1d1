import { retryWhileUnavailable } from '../db/retry.ts'

/** How long a wait goes on while what it waits for cannot be read, before it fails. */
const UNAVAILABLE_MS = 5000

/**
 * Listens for the end of something before it begins, so that nothing is missed. `wait` reads it after each notice of
 * `subscribe`, which returns how to unsubscribe, and at least every `pollMs`, until `isOver` or until the time or the caller
 * is gone; it gives what it read last. `known` is what is known of it without reading. Nothing is held open in the database
 * meanwhile, and a read that the database fails is made again.
 */
export function subscribeUntil<T extends object | null>(options: {
  subscribe: (notice: () => void) => () => void
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
      const leave = () => wake()
      closed.addEventListener('abort', leave, { once: true })
      try {
        let value = known === undefined || notified ? undefined : known
        for (;;) {
          if (value === undefined) {
            notified = false
            value = await retryWhileUnavailable(read, { signal: closed, withinMs: UNAVAILABLE_MS })
          }
          const rest = deadline - Date.now()
          if (isOver(value) || rest <= 0 || closed.aborted) return value
          value = undefined
          if (notified) continue
          await new Promise<void>(resolve => {
            const timer = setTimeout(resolve, Math.min(pollMs, rest))
            wake = () => {
              clearTimeout(timer)
              resolve()
            }
          })
        }
      } finally {
        closed.removeEventListener('abort', leave)
        cancel()
      }
    },
  }
}
