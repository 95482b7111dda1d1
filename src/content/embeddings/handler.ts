import { message } from '../../core/jobs/queue.ts'
import { type Actor, actor, every, type Tick } from '../../core/jobs/worker.ts'
import type { Services } from '../../core/process/services.ts'
import { lead } from './follow.ts'
import { embedMissing, missingQueue } from './missing.ts'
import { reindex, reindexQueue } from './reindex.ts'

const SWEEP_SECONDS = 300

/** Who embeds what has no vectors yet, and what has those of other settings. */
export function embeddingActors(services: Services): { actors: Actor[]; ticks: Tick[] } {
  // A worker that starts may have come with new settings. Should one with the old ones take it, a tick follows.
  lead(services)
    .then(() => services.queues.send([message(reindexQueue, {})]))
    .catch(error => services.log.error({ err: error }, 'not looked for documents to embed anew'))
  const leaseSeconds = services.config.INGESTION_LEASE_SECONDS
  return {
    actors: [
      actor({ ...missingQueue, leaseSeconds }, { concurrency: 1 }, (_message, context) =>
        embedMissing(services, context),
      ),
      actor({ ...reindexQueue, leaseSeconds }, { concurrency: 1 }, (_message, context) => reindex(services, context)),
    ],
    ticks: [
      every('embed what is missing', SWEEP_SECONDS, missingQueue, {}),
      every('embed anew', SWEEP_SECONDS, reindexQueue, {}),
    ],
  }
}
