import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups of attempts at decisions: the row of the attempt is the truth, so one message per attempt is enough. Retries of
 * the queue are for what could not even be recorded.
 */
export const decisionQueue = entityMailbox('decision.evaluate', {
  message: z.object({ decision_id: z.string(), attempt_id: z.string(), project_id: z.string() }),
  key: message => message.attempt_id,
  project: message => message.project_id,
  concern: 'generation',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type DecisionMessage = z.output<typeof decisionQueue.message>

/** Looks for attempts that nobody works on, and for decisions whose turn is gone: the floor under the wake-ups. */
export const decisionSweep = workQueue('decision.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
