import { sweepAttempts } from '../../core/jobs/attempt.ts'
import { every, handler } from '../../core/jobs/handler.ts'
import { message } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { lockDocument } from '../documents/store.ts'
import { type IngestionMessage, ingestionQueue, ingestionSweep } from './queue.ts'
import { limitsOf, settleFailed, settleStalled } from './settle.ts'
import { ingestions } from './store.ts'
import { failureOf, ingest } from './work.ts'

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
    ingest,
  ),
  handler(ingestionSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepIngestions(services, stopping),
  ),
]

export const ingestionSchedules = [every('ingestion.sweep', 60, ingestionSweep, {})]

/** Records that the attempt of a message could not be carried out at all, unless another worker has it. */
const giveUp = (services: Services, { document_id, attempt_id }: IngestionMessage, error: unknown): Promise<void> =>
  services.write(async tx => {
    const document = await lockDocument(tx, document_id)
    if (document && (await ingestions.endIdle(tx, { entity: document_id, id: attempt_id })))
      await settleFailed(tx, document, failureOf(error))
  })

/** Wakes the attempts that are due and whose message or worker was lost, and ends those that have taken too long. */
export const sweepIngestions = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepAttempts(services.pool, {
    attempts: ingestions,
    quietSeconds: QUIET_SECONDS,
    stopping,
    // Dropped where one waits already.
    wake: due =>
      services.queues.send(
        due.map(({ entity, id, project_id }) =>
          message(ingestionQueue, { document_id: entity, attempt_id: id, project_id }),
        ),
      ),
    giveUp: { limits: limitsOf(services), end: documentId => settleStalled(services, documentId) },
  })
