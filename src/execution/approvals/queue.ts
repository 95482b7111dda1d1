import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

const message = z.object({ approval_id: z.string(), attempt_id: z.string(), project_id: z.string() })
export type ContinueMessage = z.output<typeof message>

/** Wake-ups for follow-ups; the state is in the row. */
export const continueQueue = entityMailbox('approval.continue', {
  message,
  concern: 'generation',
  key: ({ approval_id }) => approval_id,
  project: ({ project_id }) => project_id,
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 60,
})

/** Due at the expiry of an approval. */
export const expireQueue = workQueue('approval.expire', {
  message: z.object({ approval_id: z.string(), project_id: z.string() }),
  concern: 'generation',
  project: ({ project_id }) => project_id,
})

/** Finds due approvals and orphaned follow-ups whose message was lost. */
export const approvalSweep = workQueue('approval.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
