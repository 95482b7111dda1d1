import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/** Task dispatches to execute, keyed by dispatch id. */
export const taskDispatchQueue = entityMailbox('task.dispatch', {
  message: z.object({ task_id: z.string(), dispatch_id: z.string(), project_id: z.string() }),
  key: message => message.dispatch_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type DispatchMessage = z.output<typeof taskDispatchQueue.message>

/**
 * Wake-ups for tasks whose turn, run, firing or approval may have settled. The sender does not hold the task's row
 * lock, so each notification is a separate message. Duplicates are harmless.
 */
export const settleQueue = workQueue('task.settle', {
  message: z.object({ task_id: z.string(), project_id: z.string() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type SettleMessage = z.output<typeof settleQueue.message>

/** Sweep for stalled tasks, orphaned dispatches and settled work without a notification. */
export const taskSweep = workQueue('task.sweep', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** Release of a project's deferred dispatches, in batches after task id `after`. */
export const projectTasksQueue = workQueue('task.release_project', {
  message: z.object({ project_id: z.string(), after: z.string(), authority: z.unknown() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
