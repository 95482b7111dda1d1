import { z } from 'zod'
import { workQueue } from '#core/queues/queue.ts'

/** Wake-up at the expiry of an approval. */
export const expireQueue = workQueue('approval.expire', {
  message: z.object({ approval_id: z.string(), project_id: z.string() }),
  concern: 'generation',
  project: ({ project_id }) => project_id,
})

/** Finds expired approvals whose wake-up was lost. */
export const approvalSweep = workQueue('approval.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
