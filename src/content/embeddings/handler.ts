import type { Config } from '../../config.ts'
import { type Background, every, handler } from '../../core/jobs/handler.ts'
import { message } from '../../core/jobs/queue.ts'
import { lead } from './follow.ts'
import { embedMissing, missingQueue } from './missing.ts'
import { reindex, reindexQueue } from './reindex.ts'

const SWEEP_SECONDS = 300

const options = { concurrency: 1, leaseSeconds: (config: Config) => config.INGESTION_LEASE_SECONDS }

/** Who embeds what has no vectors yet, and what has those of other settings. */
export const embeddingHandlers = [
  handler(missingQueue, options, (_message, context) => embedMissing(context.services, context)),
  handler(reindexQueue, options, (_message, context) => reindex(context.services, context)),
]

export const embeddingSchedules = [
  every('embed what is missing', SWEEP_SECONDS, missingQueue, {}),
  every('embed anew', SWEEP_SECONDS, reindexQueue, {}),
]

/** A worker that starts may have come with new settings. Should one with the old ones take it, the schedule follows. */
export const settingsFollowing: Background = {
  name: 'follow embedding settings',
  concern: 'ingestion',
  start(services) {
    lead(services)
      .then(() => services.queues.send([message(reindexQueue, {})]))
      .catch(error => services.log.error({ err: error }, 'not looked for documents to embed anew'))
    return undefined
  },
}
