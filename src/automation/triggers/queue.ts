import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/**
 * Wake-ups of firings: the row is the truth, so one message per firing is enough. Retries of the queue are for what could not
 * even be recorded.
 */
export const triggerFiringQueue = entityMailbox('trigger.fire', {
  message: z.object({ firing_id: z.string(), project_id: z.string() }),
  key: message => message.firing_id,
  project: message => message.project_id,
  concern: 'trigger',
  retry: { limit: 8 },
})
export type TriggerFiringMessage = z.output<typeof triggerFiringQueue.message>

/** Firings of a project that its pause has put off. */
export const projectFiringsQueue = workQueue('trigger.release_project', {
  message: z.object({ project_id: z.string() }),
  project: message => message.project_id,
  concern: 'trigger',
  retry: { limit: 20 },
})

/** Looks for firings that nobody works on, the floor under the wake-ups, or for those that wait for what is gone. */
export const triggerFiringSweep = workQueue('trigger.sweep', {
  message: z.object({ orphans: z.boolean().optional() }),
  concern: 'trigger',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
