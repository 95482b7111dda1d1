import type { Config } from '#core/base/config.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { type BackgroundTask, handler, schedule } from '#core/work/handler.ts'
import { sendOnLanguageChange } from '../words/rebuild.ts'
import { embedMissing, missingQueue } from './embed-missing.ts'
import { reindexDocuments, reindexQueue } from './reindex.ts'
import { adoptSettings } from './settings-owner.ts'

const SWEEP_SECONDS = 300

const options = { concurrency: 1, leaseSeconds: (config: Config) => config.INGESTION_LEASE_SECONDS }

export const embeddingHandlers = [
  handler(missingQueue, options, (_message, context) => embedMissing(context.services, context)),
  handler(reindexQueue, options, (_message, context) => reindexDocuments(context.services, context)),
]

export const embeddingSchedules = [
  schedule('embedding.fill_missing', SWEEP_SECONDS, missingQueue, {}),
  schedule('embedding.reindex', SWEEP_SECONDS, reindexQueue, {}),
]

/** A worker may start with new settings. If a worker with the old ones claims the message, the schedule repeats it. */
export const adoptSettingsOnStart: BackgroundTask = {
  name: 'adopt embedding settings',
  concern: 'ingestion',
  start(services) {
    adoptSettings(services)
      .then(() => services.queues.send([queueMessage(reindexQueue, {})]))
      .catch(error => services.log.error({ err: error }, 'reindex check failed'))
    return undefined
  },
}

/** Rebuilds the search words of a project when its language changes, without waiting for the schedule. */
export const rebuildOnLanguageChange = sendOnLanguageChange('rebuild search words', reindexQueue)
