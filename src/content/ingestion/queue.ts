import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups of ingestion attempts: the row of the attempt is the truth, so one message per attempt is enough. Failures
 * of an ingestion are counted on its row; retries of the queue are for what could not even be recorded.
 */
export const ingestionQueue = entityMailbox('ingestion.process', {
  message: z.object({ document_id: z.string(), attempt_id: z.string(), project_id: z.string() }),
  key: message => message.attempt_id,
  project: message => message.project_id,
  concern: 'ingestion',
  retry: { limit: 10, delaySeconds: 5, backoff: true, maxDelaySeconds: 60 },
})
export type IngestionMessage = z.output<typeof ingestionQueue.message>

/** Looks for attempts that nobody works on: the floor under the wake-ups, and the end of those that took too long. */
export const ingestionSweep = workQueue('ingestion.sweep', {
  message: z.object({}),
  concern: 'ingestion',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** Those that a caller waits for come first. */
export const WAITED_PRIORITY = 10

/** Tells of documents whose ingestion has settled: the document's id. */
export const DOCUMENT_SETTLED_CHANNEL = 'muster_ingestions'
