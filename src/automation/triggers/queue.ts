import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/** Wake-ups of firings, one per firing. The queue retries only failures that could not be recorded in the row. */
export const triggerFiringQueue = entityMailbox('trigger.fire', {
  message: z.object({ firing_id: z.string(), project_id: z.string() }),
  key: message => message.firing_id,
  project: message => message.project_id,
  concern: 'trigger',
  retry: { limit: 8 },
})
export type TriggerFiringMessage = z.output<typeof triggerFiringQueue.message>

/** Release of a project's deferred firings, in batches. */
export const projectFiringsQueue = workQueue('trigger.release_project', {
  message: z.object({ project_id: z.string() }),
  project: message => message.project_id,
  concern: 'trigger',
  retry: { limit: 20 },
})

/** Sweep for overdue firings, or with `orphans` for firings whose work was deleted. */
export const triggerFiringSweep = workQueue('trigger.sweep', {
  message: z.object({ orphans: z.boolean().optional() }),
  concern: 'trigger',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
