import { z } from 'zod'
import { entityMailbox, workQueue } from '#core/queues/queue.ts'

/** Queues of the queue tests and of the worker programs they start. */
const entity = z.object({ id: z.string() })
const task = z.object({ id: z.string(), project_id: z.string().optional(), ms: z.number().optional() })

export const mailbox = entityMailbox('test-mailbox', {
  message: entity,
  key: m => m.id,
  concern: 'test',
  leaseSeconds: 2,
  retry: { limit: 5, delaySeconds: 0, backoff: false },
})

export const tasks = workQueue('test-tasks', {
  message: task,
  concern: 'test',
  leaseSeconds: 2,
  retry: { limit: 5, delaySeconds: 0, backoff: false },
})

export const fragile = workQueue('test-fragile', {
  message: task,
  concern: 'test',
  retry: { limit: 1, delaySeconds: 0, backoff: false },
})

/** Of messages that a schedule sends again. */
export const recurring = workQueue('test-recurring', {
  message: entity,
  concern: 'test',
  leaseSeconds: 1,
  retry: { limit: 0 },
})

export const shared = workQueue('test-shared', { message: task, concern: 'test', project: m => m.project_id })

export const sharedMailbox = entityMailbox('test-shared-mailbox', {
  message: task,
  key: m => m.id,
  concern: 'test',
  project: m => m.project_id,
})
