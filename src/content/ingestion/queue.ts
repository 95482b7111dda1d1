import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups for ingestion attempts, one message per attempt: all state is in the row of the attempt. Failures of an
 * ingestion are counted in the row; the queue retries only failures to record them.
 */
export const ingestionQueue = entityMailbox('ingestion.process', {
  message: z.object({ document_id: z.string(), attempt_id: z.string(), project_id: z.string() }),
  key: message => message.attempt_id,
  project: message => message.project_id,
  concern: 'ingestion',
  retry: { limit: 10, delaySeconds: 5, backoff: true, maxDelaySeconds: 60 },
})
export type IngestionMessage = z.output<typeof ingestionQueue.message>

/** Wakes due and orphaned attempts, as a fallback for lost wake-ups, and fails stalled ones. */
export const ingestionSweep = workQueue('ingestion.sweep', {
  message: z.object({}),
  concern: 'ingestion',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** Priority of ingestions that a caller waits for. */
export const WAITED_PRIORITY = 10

/** Notification channel for settled ingestions; the payload is the document ID. */
export const DOCUMENT_SETTLED_CHANNEL = 'muster_ingestions'
