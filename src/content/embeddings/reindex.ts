import { z } from 'zod'
import { sql } from '../../core/db/sql.ts'
import { type JobContext, RequeueError } from '../../core/jobs/handler.ts'
import { entityMailbox, queueMessage } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { rebuildSearchWords, resolveTextSearchConfig } from '../chunks/store.ts'
import { embedDocuments } from './embed-documents.ts'
import { ownsSettings } from './settings-owner.ts'
import { currentSpace, type Space } from './space.ts'
import { countOtherSpaceDocuments, listOtherSpaceDocuments } from './store.ts'

/**
 * Brings documents to the settings: vectors of the current space, search words of the current configuration. What is
 * left to do is on the rows, so a run may end anywhere. One at a time in the deployment, and none for settings that a
 * worker which started later has replaced.
 */
export const reindexQueue = entityMailbox('embedding.reindex', {
  message: z.object({}),
  key: () => 'reindex',
  concern: 'ingestion',
  retry: { limit: 0 },
})

const DOCUMENTS = 50
/** A run takes so long at most, then sends another: a message that is handled for hours looks like one that hangs. */
const RUN_MS = 5 * 60_000
const REPORT_MS = 10_000
/** So many pages in a row without a single vector, and the provider is taken to be down: the rest waits for a tick. */
const DOWN_PAGES = 3
const CHUNKS = 500

type Handling = Pick<JobContext, 'signal' | 'stopping' | 'log'>

/** One run; sends another when there is more to do than fits into it. Throws HandBack when the worker stops. */
export async function reindexDocuments(services: Services, handling: Handling): Promise<void> {
  const until = performance.now() + RUN_MS
  const words = await followConfig(services, handling, until)
  const space = await currentSpace(services)
  const vectors = space ? await followSpace(services, space, handling, until) : 'done'
  if (words === 'more' || vectors === 'more') await services.queues.send([queueMessage(reindexQueue, {})])
}

/** Re-embeds documents of other spaces, newest first. */
async function followSpace(
  services: Services,
  space: Space,
  { signal, stopping, log }: Handling,
  until: number,
): Promise<'done' | 'more'> {
  let reported = performance.now()
  let downPages = 0
  const total = { documents: 0, embedded: 0, failed: 0 }
  const report = async (text: string) => {
    const pending = await countOtherSpaceDocuments(services.pool, space, sql.fragment`true`)
    log.info({ space_id: space.id, provider: space.provider, model: space.model, ...total, pending }, text)
  }
  for (let below: string | null = null; ; ) {
    if (!(await ownsSettings(services, 'space_id', space.id))) {
      log.info({ space_id: space.id, ...total }, 'documents follow another embedding model now')
      return 'done'
    }
    const documents = await listOtherSpaceDocuments(services.pool, space, below, DOCUMENTS)
    if (documents.length === 0) break
    below = documents[documents.length - 1].id
    const { embedded, failed, down } = await embedDocuments(services, space, documents, { signal })
    total.documents += documents.length
    total.embedded += embedded
    total.failed += failed
    downPages = down ? downPages + 1 : 0
    if (downPages === DOWN_PAGES) break
    if (stopping.aborted) throw new RequeueError('the worker stops')
    if (performance.now() > until) return 'more'
    if (performance.now() - reported > REPORT_MS) {
      reported = performance.now()
      await report('documents are embedded anew')
    }
  }
  if (total.documents > 0) await report('documents were embedded anew')
  return 'done'
}

/** Makes search words anew that another text search configuration made. */
async function followConfig(services: Services, { stopping, log }: Handling, until: number): Promise<'done' | 'more'> {
  const config = await resolveTextSearchConfig(services.pool, services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
  let chunks = 0
  for (;;) {
    if (!(await ownsSettings(services, 'text_search_config', config))) {
      log.info({ config, chunks }, 'documents follow another text search configuration now')
      return 'done'
    }
    const made = await rebuildSearchWords(services.pool, config, CHUNKS)
    chunks += made
    if (made > 0) log.info({ config, chunks }, 'search words were made anew')
    if (made < CHUNKS) return 'done'
    if (stopping.aborted) throw new RequeueError('the worker stops')
    if (performance.now() > until) return 'more'
  }
}
