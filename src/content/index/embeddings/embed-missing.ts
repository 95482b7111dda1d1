import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { entityMailbox } from '#core/queues/queue.ts'
import { type JobContext, RequeueError } from '#core/work/handler.ts'
import { embedDocuments } from './embed-documents.ts'
import { reportPartial } from './partial.ts'
import { ownsSettings } from './settings-owner.ts'
import { currentSpace } from './space.ts'
import { expireWaits, listWaitingDocuments } from './store.ts'

/** Embeds chunks that could not be embedded when they were written. One pass at a time in the deployment. */
export const missingQueue = entityMailbox('embedding.fill_missing', {
  message: z.object({}),
  key: () => 'missing',
  concern: 'ingestion',
  retry: { limit: 0 },
})

const DAY_MS = 24 * 60 * 60 * 1000
const DOCUMENT_BATCH = 50

/** Retries every document that waits for vectors once; gives none further attempts after a day. */
export async function embedMissing(
  services: Services,
  { signal, stopping, log }: Pick<JobContext, 'signal' | 'stopping' | 'log'>,
): Promise<void> {
  const before = new Date(services.clock.now().getTime() - DAY_MS)
  const expired = await services.write(async tx => {
    const documents = await expireWaits(tx, before)
    for (const each of documents) reportPartial(tx, each)
    return documents
  })
  const abandoned = expired.reduce((sum, { documents }) => sum + documents, 0)
  if (abandoned > 0) log.warn({ abandoned }, 'missing vectors abandoned')
  const space = await currentSpace(services)
  if (!space) return
  const total = { documents: 0, embedded: 0, failed: 0 }
  for (let after: Awaited<ReturnType<typeof listWaitingDocuments>>[number] | null = null; ; ) {
    if (!(await ownsSettings(services, 'space_id', space.id))) {
      log.info({ space_id: space.id, ...total }, 'embedding model changed, missing vectors left to other workers')
      return
    }
    const documents = await listWaitingDocuments(services.pool, after, DOCUMENT_BATCH)
    if (documents.length === 0) break
    after = documents[documents.length - 1]
    const { embedded, failed, down } = await embedDocuments(services, space, documents, { signal })
    total.documents += documents.length
    total.embedded += embedded
    total.failed += failed
    if (down) {
      log.warn(total, 'embedding missing vectors postponed, provider unavailable')
      return
    }
    if (stopping.aborted) throw new RequeueError('the worker stops')
  }
  if (total.documents > 0) log.info(total, 'missing vectors embedded')
}
