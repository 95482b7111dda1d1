import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups for firings; the state is in the row, so one message for each is enough. Queue retries cover failures that
 * could not be recorded.
 */
export const memoryRuleQueue = entityMailbox('memory_rule.fire', {
  message: z.object({ firing_id: z.string(), generation_id: z.string(), project_id: z.string() }),
  key: message => message.firing_id,
  project: message => message.project_id,
  concern: 'generation',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type RuleFiringMessage = z.output<typeof memoryRuleQueue.message>

/** Finds orphaned firings: the fallback for lost wake-ups. */
export const ruleFiringSweep = workQueue('memory_rule.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
