import { expectEnd } from '../../core/jobs/wait.ts'
import type { Services } from '../../core/process/services.ts'
import { type DocumentRow, documentKind } from '../documents/model.ts'
import { SETTLED_CHANNEL } from './queue.ts'

/** The floor under the notifications. */
const POLL_MS = 1000

export const isSettled = ({ status }: DocumentRow): boolean => status !== 'pending' && status !== 'processing'

/**
 * Listens for the end of a document's ingestion before it begins. `wait` gives the document as it is once it has settled,
 * the time ran out or the client went away; null when it was deleted. The ingestion goes on either way.
 */
export const expectSettled = (services: Services, documentId: string) =>
  expectEnd<DocumentRow | null>({
    subscribe: notice =>
      services.notifications.listen(SETTLED_CHANNEL, id => id === documentId && notice(), { onReconnect: notice }),
    read: () => documentKind.find(services.pool, documentId),
    isOver: document => !document || isSettled(document),
    pollMs: POLL_MS,
  })
