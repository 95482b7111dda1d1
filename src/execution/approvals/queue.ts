import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

const message = z.object({ approval_id: z.string(), attempt_id: z.string(), project_id: z.string() })
export type ContinueMessage = z.output<typeof message>

/** Wake-ups of what follows from an approval; the truth is its row. */
export const continueQueue = entityMailbox('approval.continue', {
  message,
  concern: 'generation',
  key: ({ approval_id }) => approval_id,
  project: ({ project_id }) => project_id,
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 60,
})

/** Sent for the moment at which an approval expires. */
export const expireQueue = workQueue('approval.expire', {
  message: z.object({ approval_id: z.string(), project_id: z.string() }),
  concern: 'generation',
  project: ({ project_id }) => project_id,
})

/** Finds what no message led to. */
export const approvalSweep = workQueue('approval.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
