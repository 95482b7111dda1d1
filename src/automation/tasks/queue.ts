import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/** Attempts of dispatches, by the names of the attempts; of one at most one message waits. */
export const taskDispatchQueue = entityMailbox('task.dispatch', {
  message: z.object({ task_id: z.string(), dispatch_id: z.string(), project_id: z.string() }),
  key: message => message.dispatch_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type DispatchMessage = z.output<typeof taskDispatchQueue.message>

/**
 * Something that a task waits for may have settled: its turn, its run, its firing, its approval. Whoever says so does not hold
 * the task's row, so each is a message of its own; to look at the rows twice does no harm.
 */
export const settleQueue = workQueue('task.settle', {
  message: z.object({ task_id: z.string(), project_id: z.string() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
export type SettleMessage = z.output<typeof settleQueue.message>

/** Looks for tasks that have stalled, and for dispatches that nobody works on or has told of. */
export const taskSweep = workQueue('task.sweep', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** Dispatches of a project, behind a task, that its pause held and that are made now. */
export const projectTasksQueue = workQueue('task.release_project', {
  message: z.object({ project_id: z.string(), after: z.string(), authority: z.unknown() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
