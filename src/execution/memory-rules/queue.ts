import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups of firings: the row of the firing is the truth, so one message per firing is enough. Retries of the queue are for
 * what could not even be recorded.
 */
export const memoryRuleQueue = entityMailbox('memory_rule.fire', {
  message: z.object({ firing_id: z.string(), generation_id: z.string(), project_id: z.string() }),
  key: message => message.firing_id,
  project: message => message.project_id,
  concern: 'generation',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type RuleFiringMessage = z.output<typeof memoryRuleQueue.message>

/** Looks for firings that nobody works on: the floor under the wake-ups. */
export const ruleFiringSweep = workQueue('memory_rule.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
