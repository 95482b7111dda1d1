import { z } from 'zod'
import type { Config } from '../../config.ts'
import { resolveTextSearchConfig } from '../../content/chunks/store.ts'
import { adoptSettings, ownsSettings } from '../../content/embeddings/settings-owner.ts'
import { currentSpace } from '../../content/embeddings/space.ts'
import { type BackgroundTask, handler, type JobContext, RequeueError, schedule } from '../../core/jobs/handler.ts'
import { entityMailbox, queueMessage } from '../../core/jobs/queue.ts'
import { embedMemories } from './embed-memories.ts'
import { listOtherSpaceMemories, rebuildWords } from './store.ts'

/**
 * Embeds memories that could not be embedded when they were written, and rebuilds vectors and search words after a
 * change of settings. Progress is stored in the rows. One pass at a time in the deployment.
 */
export const memoryEmbedQueue = entityMailbox('memory.embed', {
  message: z.object({}),
  key: () => 'memories',
  concern: 'ingestion',
  retry: { limit: 0 },
})

const EVERY_SECONDS = 600
/** Memories read, embedded and written per batch. */
const EMBED_BATCH = 64
const WORD_BATCH = 500
/** Maximum duration of a pass, which then sends another message: a handler active for hours would seem stalled. */
const PASS_MS = 5 * 60_000

export const memoryHandlers = [
  handler(
    memoryEmbedQueue,
    { concurrency: 1, leaseSeconds: (config: Config) => config.INGESTION_LEASE_SECONDS },
    async (_message, context) => {
      const until = performance.now() + PASS_MS
      if ((await reindexWords(context, until)) && (await embedAll(context, until))) return
      await context.services.queues.send([queueMessage(memoryEmbedQueue, {})])
    },
  ),
]

export const memorySchedules = [schedule('memory.embed', EVERY_SECONDS, memoryEmbedQueue, {})]

/** A worker may start with another embedding model. */
export const adoptModelOnStart: BackgroundTask = {
  name: 'embed memories',
  concern: 'ingestion',
  start(services) {
    adoptSettings(services)
      .then(() => services.queues.send([queueMessage(memoryEmbedQueue, {})]))
      .catch(error => services.log.error({ err: error }, 'memory reindex check failed'))
    return undefined
  },
}

type PassContext = Pick<JobContext, 'services' | 'signal' | 'stopping' | 'log'>

/**
 * Embeds memories of other spaces; returns false if the pass ran out of time. Throws RequeueError when the worker
 * stops.
 */
async function embedAll({ services, signal, stopping, log }: PassContext, until: number): Promise<boolean> {
  const space = await currentSpace(services)
  if (!space) return true
  const total = { memories: 0, embedded: 0, failed: 0 }
  for (let after = ''; ; ) {
    if (!(await ownsSettings(services, 'space_id', space.id))) return true
    const memories = await listOtherSpaceMemories(services.pool, space, after, EMBED_BATCH)
    if (memories.length === 0) break
    after = memories[memories.length - 1].id
    const { embedded, failed, down } = await embedMemories(services, space, memories, { signal })
    total.memories += memories.length
    total.embedded += embedded
    total.failed += failed
    if (down) {
      log.warn(total, 'embedding memories postponed, provider unavailable')
      return true
    }
    if (stopping.aborted) throw new RequeueError('the worker stops')
    if (performance.now() > until) return false
  }
  if (total.memories > 0) log.info(total, 'memories embedded')
  return true
}

/** Rebuilds search words of another text search configuration; returns false if the pass ran out of time. */
async function reindexWords({ services, stopping, log }: PassContext, until: number): Promise<boolean> {
  const config = await resolveTextSearchConfig(services.pool, services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
  for (let memories = 0; await ownsSettings(services, 'text_search_config', config); ) {
    const rebuilt = await rebuildWords(services.pool, config, WORD_BATCH)
    memories += rebuilt
    if (rebuilt > 0) log.info({ config, memories }, 'search words of memories rebuilt')
    if (rebuilt < WORD_BATCH) break
    if (stopping.aborted) throw new RequeueError('the worker stops')
    if (performance.now() > until) return false
  }
  return true
}
