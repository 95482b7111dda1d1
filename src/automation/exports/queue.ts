import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups of exports: the row of the attempt is the truth. Retries of the queue are for what could not even be recorded.
 */
export const exportQueue = entityMailbox('export.build', {
  message: z.object({ export_id: z.string(), attempt_id: z.string(), project_id: z.string() }),
  key: message => message.attempt_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 300,
})
export type ExportMessage = z.output<typeof exportQueue.message>

/** Looks for exports that no message leads to. */
export const exportSweep = workQueue('export.sweep', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
