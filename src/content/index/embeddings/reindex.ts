import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import { entityMailbox, queueMessage } from '#core/queues/queue.ts'
import { type JobContext, RequeueError } from '#core/work/handler.ts'
import { chunkWords, rebuildWords } from '../words/rebuild.ts'
import { embedDocuments } from './embed-documents.ts'
import { ownsSettings } from './settings-owner.ts'
import { currentSpace, type Space } from './space.ts'
import { countOtherSpaceDocuments, listOtherSpaceDocuments } from './store.ts'

/**
 * Rebuilds vectors and search words of documents after a change of settings. Progress is stored in the rows, so that a
 * pass may end anywhere. One pass at a time in the deployment, and none for settings that a worker which started later
 * has replaced.
 */
export const reindexQueue = entityMailbox('embedding.reindex', {
  message: z.object({}),
  key: () => 'reindex',
  concern: 'ingestion',
  retry: { limit: 0 },
})

const DOCUMENT_BATCH = 50
/** Maximum duration of a pass, which then sends another message: a handler active for hours would seem stalled. */
const PASS_MS = 5 * 60_000
const REPORT_MS = 10_000
/** After this many consecutive batches without a vector the provider counts as down, and the pass ends. */
const MAX_DOWN_BATCHES = 3

type PassContext = Pick<JobContext, 'signal' | 'stopping' | 'log'>

/** Runs one reindex pass and enqueues another if work remains. Throws RequeueError when the worker stops. */
export async function reindexDocuments(services: Services, context: PassContext): Promise<void> {
  const until = performance.now() + PASS_MS
  // Words of a project that changes its language again and again must not keep the others from their vectors.
  const words = await rebuildWords(services, chunkWords, context, until - PASS_MS / 2)
  const space = await currentSpace(services)
  const vectors = space ? await reindexVectors(services, space, context, until) : 'done'
  if (words === 'more' || vectors === 'more') await services.queues.send([queueMessage(reindexQueue, {})])
}

/** Embeds documents of other spaces again, newest first. */
async function reindexVectors(
  services: Services,
  space: Space,
  { signal, stopping, log }: PassContext,
  until: number,
): Promise<'done' | 'more'> {
  let reported = performance.now()
  let downBatches = 0
  const total = { documents: 0, embedded: 0, failed: 0 }
  const report = async (text: string) => {
    const pending = await countOtherSpaceDocuments(services.pool, space, sql.fragment`true`)
    log.info({ space_id: space.id, provider: space.provider, model: space.model, ...total, pending }, text)
  }
  for (let below: string | null = null; ; ) {
    if (!(await ownsSettings(services, 'space_id', space.id))) {
      log.info({ space_id: space.id, ...total }, 'embedding model changed, reindexing stopped')
      return 'done'
    }
    const documents = await listOtherSpaceDocuments(services.pool, space, below, DOCUMENT_BATCH)
    if (documents.length === 0) break
    below = documents[documents.length - 1].id
    const { embedded, failed, down } = await embedDocuments(services, space, documents, { signal })
    total.documents += documents.length
    total.embedded += embedded
    total.failed += failed
    downBatches = down ? downBatches + 1 : 0
    if (downBatches === MAX_DOWN_BATCHES) break
    if (stopping.aborted) throw new RequeueError('the worker stops')
    if (performance.now() > until) return 'more'
    if (performance.now() - reported > REPORT_MS) {
      reported = performance.now()
      await report('reindexing documents')
    }
  }
  if (total.documents > 0) await report('documents reindexed')
  return 'done'
}
