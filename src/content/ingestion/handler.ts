import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { lockDocument } from '../documents/store.ts'
import { failIngestion, failStalledIngestion, ingestionLimits } from './fail-ingestion.ts'
import { ingestDocument, ingestionFailure } from './ingest.ts'
import { type IngestionMessage, ingestionQueue, ingestionSweep } from './queue.ts'
import { ingestionWork } from './store.ts'

/** An attempt this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/** Who ingests documents, and who looks for those whose wake-up is missing. */
export const ingestionHandlers = [
  handler(
    ingestionQueue,
    {
      leaseSeconds: config => config.INGESTION_LEASE_SECONDS,
      onExhausted: (message, error, services) => giveUp(services, message, error),
    },
    ingestDocument,
  ),
  handler(ingestionSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepIngestions(services, stopping),
  ),
]

export const ingestionSchedules = [schedule('ingestion.sweep', 60, ingestionSweep, {})]

/** Records that the attempt of a message could not be carried out at all, unless another worker has it. */
const giveUp = (services: Services, { document_id, attempt_id }: IngestionMessage, error: unknown): Promise<void> =>
  services.write(async tx => {
    const document = await lockDocument(tx, document_id)
    if (document && (await ingestionWork.endIdle(tx, { entity: document_id, id: attempt_id })))
      await failIngestion(tx, document, ingestionFailure(error))
  })

/** Wakes the attempts that are due and whose message or worker was lost, and ends those that have taken too long. */
export const sweepIngestions = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepWorkItems(services.pool, {
    attempts: ingestionWork,
    quietSeconds: QUIET_SECONDS,
    stopping,
    // Dropped where one waits already.
    wake: due =>
      services.queues.send(
        due.map(({ entity, id, project_id }) =>
          queueMessage(ingestionQueue, { document_id: entity, attempt_id: id, project_id }),
        ),
      ),
    giveUp: { limits: ingestionLimits(services), end: documentId => failStalledIngestion(services, documentId) },
  })
