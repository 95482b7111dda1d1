import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups for decisions; the state is in the work item, so one message for each is enough. Queue retries cover
 * failures that could not be recorded.
 */
export const decisionQueue = entityMailbox('decision.evaluate', {
  message: z.object({ decision_id: z.string(), attempt_id: z.string(), project_id: z.string() }),
  key: message => message.attempt_id,
  project: message => message.project_id,
  concern: 'generation',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type DecisionMessage = z.output<typeof decisionQueue.message>

/** Finds orphaned work items and decisions whose turn was deleted: the fallback for lost wake-ups. */
export const decisionSweep = workQueue('decision.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
