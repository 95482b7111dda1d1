import { subscribeUntil } from '../../core/jobs/subscription.ts'
import type { Services } from '../../core/process/services.ts'
import { type DocumentRow, documentKind } from '../documents/model.ts'
import { DOCUMENT_SETTLED_CHANNEL } from './queue.ts'

/** The floor under the notifications. */
const POLL_MS = 1000

export const isDocumentSettled = ({ status }: DocumentRow): boolean => status !== 'pending' && status !== 'processing'

/**
 * Listens for the end of a document's ingestion before it begins. `wait` gives the document as it is once it has settled,
 * the time ran out or the client went away; null when it was deleted. The ingestion goes on either way.
 */
export const subscribeSettled = (services: Services, documentId: string) =>
  subscribeUntil<DocumentRow | null>({
    subscribe: notice =>
      services.notifications.listen(DOCUMENT_SETTLED_CHANNEL, id => id === documentId && notice(), {
        onReconnect: notice,
      }),
    read: () => documentKind.find(services.pool, documentId),
    isOver: document => !document || isDocumentSettled(document),
    pollMs: POLL_MS,
  })
