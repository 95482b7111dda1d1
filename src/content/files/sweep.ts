import { type Actor, actor, every, type Tick } from '../../core/jobs/handler.ts'
import type { Services } from '../../core/process/services.ts'
import type { Location } from '../storage/storage.ts'
import { deleteQueue, projectDeleteQueue, stagedQueue, stores } from '../storage/stores.ts'
import { SWEEP_SECONDS, sweepBlobs, sweepQueue } from '../storage/sweep.ts'
import { deleteEndedTokens } from './store.ts'

const TOKENS_KEPT_MS = 86_400_000

/** Removes stored bytes whose files are gone, and what uploads left behind that never ended. */
export function fileActors(services: Services): { actors: Actor[]; ticks: Tick[] } {
  const store = stores(services)
  const removeAll = async ({ objects }: { objects: Location[] }) => {
    for (const object of objects) await store.remove(object)
  }
  return {
    actors: [
      actor(deleteQueue, {}, removeAll),
      actor(projectDeleteQueue, { concurrency: 1 }, removeAll),
      actor(stagedQueue, {}, store.abandon),
      actor(sweepQueue, { concurrency: 1 }, async (_message, { log, stopping }) => {
        const started = performance.now()
        const removed = await sweepBlobs(services, stopping)
        const tokens = await deleteEndedTokens(services.pool, new Date(services.clock.now().getTime() - TOKENS_KEPT_MS))
        log.info({ removed, tokens, ms: Math.round(performance.now() - started) }, 'sweep of file bytes done')
      }),
    ],
    ticks: [every('sweep file bytes', SWEEP_SECONDS, sweepQueue, {})],
  }
}
