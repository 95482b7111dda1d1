import type { Services } from '../../core/process/services.ts'
import { type DocumentRow, documentKind } from '../documents/model.ts'
import { SETTLED_CHANNEL } from './queue.ts'

/** The floor under the notifications. */
const POLL_MS = 1000

export const isSettled = ({ status }: DocumentRow): boolean => status !== 'pending' && status !== 'processing'

/**
 * Listens for the end of a document's ingestion before it begins, so that nothing is missed. `wait` answers the document
 * as it is once it has settled, SYNC_WAIT_SECONDS ran out or the client went away; null when it was deleted. The
 * ingestion goes on either way, and nothing is held open in the database meanwhile.
 */
export function expectSettled(
  services: Services,
  documentId: string,
): { wait(closed: AbortSignal): Promise<DocumentRow | null>; cancel(): void } {
  let told = false
  let wake = () => {}
  const look = () => {
    told = true
    wake()
  }
  const end = services.notifications.listen(SETTLED_CHANNEL, id => id === documentId && look(), { onReconnect: look })
  return {
    cancel: end,
    async wait(closed) {
      const deadline = Date.now() + services.config.SYNC_WAIT_SECONDS * 1000
      const left = () => wake()
      closed.addEventListener('abort', left, { once: true })
      try {
        for (;;) {
          told = false
          const document = await documentKind.find(services.pool, documentId)
          const rest = deadline - Date.now()
          if (!document || isSettled(document) || rest <= 0 || closed.aborted) return document
          if (told) continue
          await new Promise<void>(resolve => {
            const timer = setTimeout(resolve, Math.min(POLL_MS, rest))
            wake = () => {
              clearTimeout(timer)
              resolve()
            }
          })
        }
      } finally {
        closed.removeEventListener('abort', left)
        end()
      }
    },
  }
}
