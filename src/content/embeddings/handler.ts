import type { Config } from '../../config.ts'
import { type BackgroundTask, handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { embedMissing, missingQueue } from './embed-missing.ts'
import { reindexDocuments, reindexQueue } from './reindex.ts'
import { adoptSettings } from './settings-owner.ts'

const SWEEP_SECONDS = 300

const options = { concurrency: 1, leaseSeconds: (config: Config) => config.INGESTION_LEASE_SECONDS }

/** Who embeds what has no vectors yet, and what has those of other settings. */
export const embeddingHandlers = [
  handler(missingQueue, options, (_message, context) => embedMissing(context.services, context)),
  handler(reindexQueue, options, (_message, context) => reindexDocuments(context.services, context)),
]

export const embeddingSchedules = [
  schedule('embed what is missing', SWEEP_SECONDS, missingQueue, {}),
  schedule('embed anew', SWEEP_SECONDS, reindexQueue, {}),
]

/** A worker that starts may have come with new settings. Should one with the old ones take it, the schedule follows. */
export const adoptSettingsOnStart: BackgroundTask = {
  name: 'follow embedding settings',
  concern: 'ingestion',
  start(services) {
    adoptSettings(services)
      .then(() => services.queues.send([queueMessage(reindexQueue, {})]))
      .catch(error => services.log.error({ err: error }, 'not looked for documents to embed anew'))
    return undefined
  },
}
