import { handler, schedule } from '#core/work/handler.ts'
import { deleteQueue, projectDeleteQueue, stagedQueue, storageBackends } from '../storage/backends.ts'
import { SWEEP_SECONDS, storageSweepQueue, sweepBlobs } from '../storage/cleanup.ts'
import { deleteEndedTokens } from './store.ts'

const TOKEN_RETENTION_MS = 86_400_000

/** Delete bytes of deleted files and projects, abandoned uploads and ended upload tokens. */
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
    const tokens = await deleteEndedTokens(services.pool, new Date(services.clock.now().getTime() - TOKEN_RETENTION_MS))
    log.info({ removed, tokens, ms: Math.round(performance.now() - started) }, 'file storage swept')
  }),
]

export const fileSchedules = [schedule('storage.sweep', SWEEP_SECONDS, storageSweepQueue, {})]
