import type { Services } from '../process/services.ts'

/**
 * Listens for the end of something before it begins, so that nothing is missed. `wait` reads it after each notification
 * that `concerns` it, and at least every `pollMs`, until `isOver` or until the time or the caller is gone; it gives what it
 * read last. Nothing is held open in the database meanwhile.
 */
export function expectEnd<T>(
  services: Pick<Services, 'notifications'>,
  options: {
    channel: string
    concerns: (payload: string) => boolean
    read: () => Promise<T>
    isOver: (value: T) => boolean
    pollMs: number
  },
): { wait(options: { closed: AbortSignal; withinMs: number }): Promise<T>; cancel(): void } {
  const { channel, concerns, read, isOver, pollMs } = options
  let notified = false
  let wake = () => {}
  const notice = () => {
    notified = true
    wake()
  }
  const unlisten = services.notifications.listen(channel, payload => concerns(payload) && notice(), {
    onReconnect: notice,
  })
  return {
    cancel: unlisten,
    async wait({ closed, withinMs }) {
      const deadline = Date.now() + withinMs
      const leave = () => wake()
      closed.addEventListener('abort', leave, { once: true })
      try {
        for (;;) {
          notified = false
          const value = await read()
          const rest = deadline - Date.now()
          if (isOver(value) || rest <= 0 || closed.aborted) return value
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
        unlisten()
      }
    },
  }
}
