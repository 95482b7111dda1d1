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
 * Embeds memories that could not be embedded when they were written, and all of them anew where the deployment has another
 * model; their words, too, follow the settings. What is left to do is on the rows. One run at a time in the deployment.
 */
export const memoryEmbedQueue = entityMailbox('memory.embed', {
  message: z.object({}),
  key: () => 'memories',
  concern: 'ingestion',
  retry: { limit: 0 },
})

const EVERY_SECONDS = 600
/** Memories that are read, embedded and written together. */
const BATCH = 64
const WORDS = 500
/** A run takes so long at most, then sends another: a message that is handled for hours looks like one that hangs. */
const RUN_MS = 5 * 60_000

export const memoryHandlers = [
  handler(
    memoryEmbedQueue,
    { concurrency: 1, leaseSeconds: (config: Config) => config.INGESTION_LEASE_SECONDS },
    async (_message, context) => {
      const until = performance.now() + RUN_MS
      if ((await followWords(context, until)) && (await embedAll(context, until))) return
      await context.services.queues.send([queueMessage(memoryEmbedQueue, {})])
    },
  ),
]

export const memorySchedules = [schedule('memory.embed', EVERY_SECONDS, memoryEmbedQueue, {})]

/** A worker that starts may have come with a model, or another one. */
export const adoptModelOnStart: BackgroundTask = {
  name: 'embed memories',
  concern: 'ingestion',
  start(services) {
    adoptSettings(services)
      .then(() => services.queues.send([queueMessage(memoryEmbedQueue, {})]))
      .catch(error => services.log.error({ err: error }, 'not looked for memories to embed'))
    return undefined
  },
}

type Handling = Pick<JobContext, 'services' | 'signal' | 'stopping' | 'log'>

/** Returns whether nothing is left to be tried now. Throws HandBack when the worker stops. */
async function embedAll({ services, signal, stopping, log }: Handling, until: number): Promise<boolean> {
  const space = await currentSpace(services)
  if (!space) return true
  const total = { memories: 0, embedded: 0, failed: 0 }
  for (let after = ''; ; ) {
    if (!(await ownsSettings(services, 'space_id', space.id))) return true
    const memories = await listOtherSpaceMemories(services.pool, space, after, BATCH)
    if (memories.length === 0) break
    after = memories[memories.length - 1].id
    const { embedded, failed, down } = await embedMemories(services, space, memories, { signal })
    total.memories += memories.length
    total.embedded += embedded
    total.failed += failed
    if (down) {
      log.warn(total, 'memories are embedded later: the provider embeds nothing')
      return true
    }
    if (stopping.aborted) throw new RequeueError('the worker stops')
    if (performance.now() > until) return false
  }
  if (total.memories > 0) log.info(total, 'memories were embedded')
  return true
}

/** The same of the words of another text search configuration. */
async function followWords({ services, stopping, log }: Handling, until: number): Promise<boolean> {
  const config = await resolveTextSearchConfig(services.pool, services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
  for (let memories = 0; await ownsSettings(services, 'text_search_config', config); ) {
    const made = await rebuildWords(services.pool, config, WORDS)
    memories += made
    if (made > 0) log.info({ config, memories }, 'words of memories were made anew')
    if (made < WORDS) break
    if (stopping.aborted) throw new RequeueError('the worker stops')
    if (performance.now() > until) return false
  }
  return true
}
