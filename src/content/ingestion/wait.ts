import type { Services } from '#core/base/services.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import { type DocumentRow, documentKind } from '../documents/model.ts'

/** Notification channel for settled ingestions; the payload is the document ID. */
export const DOCUMENT_SETTLED_CHANNEL = 'muster_ingestions'

/** Polling interval, as a fallback for lost notifications. */
const POLL_MS = 1000

export const isDocumentSettled = ({ status }: DocumentRow): boolean => status !== 'pending' && status !== 'processing'

/**
 * Subscribes to the settlement of a document's ingestion, before it starts. `wait` returns the current document when it
 * has settled, on timeout and when the client disconnects; null if it was deleted. The ingestion continues in any case.
 */
export const subscribeSettled = (services: Services, documentId: string) =>
  subscribeUntil<DocumentRow | null>({
    subscribe: notify =>
      services.notifications.listen(DOCUMENT_SETTLED_CHANNEL, id => id === documentId && notify(), {
        onReconnect: notify,
      }),
    read: () => documentKind.find(services.pool, documentId),
    isOver: document => !document || isDocumentSettled(document),
    pollMs: POLL_MS,
  })
