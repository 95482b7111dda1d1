import { every, handler } from '../../core/jobs/handler.ts'
import type { Services } from '../../core/process/services.ts'
import { lockDocument } from '../documents/store.ts'
import { type IngestionMessage, ingestionQueue, ingestionSweep } from './queue.ts'
import { settleFailed } from './settle.ts'
import { endIdle } from './store.ts'
import { sweepAttempts } from './sweep.ts'
import { failureOf, ingest } from './work.ts'

/** Who ingests documents, and who looks for those whose wake-up is missing. */
export const ingestionHandlers = [
  handler(
    ingestionQueue,
    {
      leaseSeconds: config => config.INGESTION_LEASE_SECONDS,
      onExhausted: (message, error, services) => giveUp(services, message, error),
    },
    (message, context) => ingest(context.services, message, context),
  ),
  handler(ingestionSweep, { concurrency: 1 }, (_message, { services, stopping }) => sweepAttempts(services, stopping)),
]

export const ingestionSchedules = [every('ingestion.sweep', 60, ingestionSweep, {})]

/** Records that the attempt of a message could not be carried out at all, unless another worker has it. */
const giveUp = (services: Services, { document_id, attempt_id }: IngestionMessage, error: unknown): Promise<void> =>
  services.write(async tx => {
    const document = await lockDocument(tx, document_id)
    if (document && (await endIdle(tx, document_id, attempt_id))) await settleFailed(tx, document, failureOf(error))
  })
