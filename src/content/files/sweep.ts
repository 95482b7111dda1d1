import { handler, schedule } from '../../core/jobs/handler.ts'
import { deleteQueue, projectDeleteQueue, stagedQueue, storageBackends } from '../storage/backends.ts'
import { SWEEP_SECONDS, storageSweepQueue, sweepBlobs } from '../storage/cleanup.ts'
import { deleteEndedTokens } from './store.ts'

const TOKENS_KEPT_MS = 86_400_000

/** Removes stored bytes whose files are gone, and what uploads left behind that never ended. */
export const fileHandlers = [
  ...[deleteQueue, projectDeleteQueue].map(queue =>
    handler(queue, queue === projectDeleteQueue ? { concurrency: 1 } : {}, async ({ objects }, { services }) => {
      for (const object of objects) await storageBackends(services).remove(object)
    }),
  ),
  handler(stagedQueue, {}, (message, { services }) => storageBackends(services).abandon(message)),
  handler(storageSweepQueue, { concurrency: 1 }, async (_message, { services, log, stopping }) => {
    const started = performance.now()
    const removed = await sweepBlobs(services, stopping)
    const tokens = await deleteEndedTokens(services.pool, new Date(services.clock.now().getTime() - TOKENS_KEPT_MS))
    log.info({ removed, tokens, ms: Math.round(performance.now() - started) }, 'sweep of file bytes done')
  }),
]

export const fileSchedules = [schedule('sweep file bytes', SWEEP_SECONDS, storageSweepQueue, {})]
