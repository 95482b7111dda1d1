import { z } from 'zod'
import { type JobContext, RequeueError } from '../../core/jobs/handler.ts'
import { entityMailbox } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { embedDocuments } from './embed-documents.ts'
import { ownsSettings } from './settings-owner.ts'
import { currentSpace } from './space.ts'
import { expireWaits, listWaitingDocuments } from './store.ts'

/** Embeds what could not be embedded when it was written. One at a time in the deployment. */
export const missingQueue = entityMailbox('embedding.fill_missing', {
  message: z.object({}),
  key: () => 'missing',
  concern: 'ingestion',
  retry: { limit: 0 },
})

const DAY_MS = 24 * 60 * 60 * 1000
const DOCUMENTS = 50

/** Tries every document that waits for vectors once; after a day none is tried any more. */
export async function embedMissing(
  services: Services,
  { signal, stopping, log }: Pick<JobContext, 'signal' | 'stopping' | 'log'>,
): Promise<void> {
  const given_up = await expireWaits(services.pool, new Date(services.clock.now().getTime() - DAY_MS))
  if (given_up > 0) log.warn({ given_up }, 'documents stay without some of their vectors')
  const space = await currentSpace(services)
  if (!space) return
  const total = { documents: 0, embedded: 0, failed: 0 }
  for (let after: Awaited<ReturnType<typeof listWaitingDocuments>>[number] | null = null; ; ) {
    if (!(await ownsSettings(services, 'space_id', space.id))) {
      log.info({ space_id: space.id, ...total }, 'missing vectors are left to another embedding model')
      return
    }
    const documents = await listWaitingDocuments(services.pool, after, DOCUMENTS)
    if (documents.length === 0) break
    after = documents[documents.length - 1]
    const { embedded, failed, down } = await embedDocuments(services, space, documents, { signal })
    total.documents += documents.length
    total.embedded += embedded
    total.failed += failed
    if (down) {
      log.warn(total, 'missing vectors are tried for later: the provider embeds nothing')
      return
    }
    if (stopping.aborted) throw new RequeueError('the worker stops')
  }
  if (total.documents > 0) log.info(total, 'missing vectors tried for')
}
