import { z } from 'zod'
import { adoptSettings, ownsSettings } from '#content/index/embeddings/settings-owner.ts'
import { currentSpace } from '#content/index/embeddings/space.ts'
import { rebuildWords, sendOnLanguageChange, type WordsTable } from '#content/index/words/rebuild.ts'
import type { Config } from '#core/base/config.ts'
import { sql } from '#core/db/sql.ts'
import { entityMailbox, queueMessage } from '#core/queues/queue.ts'
import { type BackgroundTask, handler, type JobContext, RequeueError, schedule } from '#core/work/handler.ts'
import { embedMemories } from './embed-memories.ts'
import { listOtherSpaceMemories } from './store.ts'

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
/** Maximum duration of a pass, which then sends another message: a handler active for hours would seem stalled. */
const PASS_MS = 5 * 60_000

const memoryWords: WordsTable = { name: 'memories', own: sql.fragment`null::text` }

export const memoryHandlers = [
  handler(
    memoryEmbedQueue,
    { concurrency: 1, leaseSeconds: (config: Config) => config.INGESTION_LEASE_SECONDS },
    async (_message, context) => {
      const until = performance.now() + PASS_MS
      const words = await rebuildWords(context.services, memoryWords, context, until)
      if (words === 'done' && (await embedAll(context, until))) return
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

/** Rebuilds the search words of a project when its language changes, without waiting for the schedule. */
export const rebuildOnLanguageChange = sendOnLanguageChange('rebuild search words of memories', memoryEmbedQueue)

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
