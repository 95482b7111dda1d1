import { z } from 'zod'
import { workQueue } from '#core/queues/queue.ts'
import type { WorkRef } from '#core/work/store.ts'
import { works } from '#core/work/work.ts'
import type { Outbox } from '#core/writes/writer.ts'

export const TASK_DISPATCH = 'task.dispatch'

/** Sends the wake-up of a dispatch. Found by name, because settling a dispatch creates the next one. */
export const wakeDispatch = (
  outbox: Pick<Outbox, 'send'>,
  dispatch: WorkRef & { project_id: string },
  options?: { startAfter?: Date },
): void => works.get(TASK_DISPATCH).wake(outbox, dispatch, options)

/**
 * Wake-ups for tasks whose approval was resolved. The sender does not hold the task's row lock, so each notification is a
 * separate message. Duplicates are harmless.
 */
export const settleQueue = workQueue('task.settle', {
  message: z.object({ task_id: z.string(), project_id: z.string() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})

/** Release of a project's deferred dispatches, in batches after task id `after`. */
export const projectTasksQueue = workQueue('task.release_project', {
  message: z.object({ project_id: z.string(), after: z.string(), authority: z.unknown() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
})
