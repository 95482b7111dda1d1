import { z } from 'zod'
import { entityMailbox, workQueue } from '../core/jobs/queue.ts'

/** Wake-ups of operations: the row of the attempt is the truth. Retries of the queue are for what could not be recorded. */
export const formationQueue = entityMailbox('formation.operate', {
  message: z.object({ formation_id: z.string(), operation_id: z.string(), project_id: z.string() }),
  key: message => message.formation_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 60,
})
export type FormationMessage = z.output<typeof formationQueue.message>

/** Finds operations that no message leads to. */
export const formationSweep = workQueue('formation.sweep', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
