import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/** Wake-ups of exports. The queue retries only failures that could not be recorded in the row of the attempt. */
export const exportQueue = entityMailbox('export.build', {
  message: z.object({ export_id: z.string(), attempt_id: z.string(), project_id: z.string() }),
  key: message => message.attempt_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 300,
})
export type ExportMessage = z.output<typeof exportQueue.message>

/** Sweep for overdue exports. */
export const exportSweep = workQueue('export.sweep', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
