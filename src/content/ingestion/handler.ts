import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { lockDocument } from '../documents/store.ts'
import { failIngestion, failStalledIngestion, ingestionLimits } from './fail-ingestion.ts'
import { ingestDocument, ingestionFailure } from './ingest.ts'
import { type IngestionMessage, ingestionQueue, ingestionSweep } from './queue.ts'
import { ingestionWork } from './store.ts'

/** Delay after which a due attempt counts as orphaned: its message or worker was lost. */
const ORPHANED_AFTER_SECONDS = 5

export const ingestionHandlers = [
  handler(
    ingestionQueue,
    {
      leaseSeconds: config => config.INGESTION_LEASE_SECONDS,
      onExhausted: (message, error, services) => abandonAttempt(services, message, error),
    },
    ingestDocument,
  ),
  handler(ingestionSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepIngestions(services, stopping),
  ),
]

export const ingestionSchedules = [schedule('ingestion.sweep', 60, ingestionSweep, {})]

/** Fails the ingestion of a message whose handler failed repeatedly, unless another worker has claimed the attempt. */
const abandonAttempt = (
  services: Services,
  { document_id, attempt_id }: IngestionMessage,
  error: unknown,
): Promise<void> =>
  services.write(async tx => {
    const document = await lockDocument(tx, document_id)
    if (document && (await ingestionWork.endIdle(tx, { entity: document_id, id: attempt_id })))
      await failIngestion(tx, document, ingestionFailure(error))
  })

/** Wakes orphaned attempts and fails stalled ones. */
export const sweepIngestions = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepWorkItems(services.pool, {
    attempts: ingestionWork,
    quietSeconds: ORPHANED_AFTER_SECONDS,
    stopping,
    // Discarded by the mailbox if a message is already queued.
    wake: due =>
      services.queues.send(
        due.map(({ entity, id, project_id }) =>
          queueMessage(ingestionQueue, { document_id: entity, attempt_id: id, project_id }),
        ),
      ),
    giveUp: { limits: ingestionLimits(services), end: documentId => failStalledIngestion(services, documentId) },
  })
