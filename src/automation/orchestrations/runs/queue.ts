import { z } from 'zod'
import { entityMailbox, workQueue } from '#core/queues/queue.ts'

/** Wake-ups that advance a run. */
export const runQueue = entityMailbox('run.advance', {
  message: z.object({ run_id: z.string(), project_id: z.string() }),
  key: message => message.run_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 10 },
})
export type RunMessage = z.output<typeof runQueue.message>

/**
 * Wake-ups sent by transactions that do not hold the lock of the run: nested runs, turns, decisions. A mailbox keeps
 * one message per run; a wake-up dropped as a duplicate would be lost if the waiting one were claimed before this
 * transaction commits. So each is a separate message, forwarded to `runQueue` after the commit.
 */
export const runWakeQueue = workQueue('run.wake', {
  message: runQueue.message,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})

/** Wake-ups of the live runs of a project that was paused or resumed, after a run ID. */
export const projectRunWakeQueue = workQueue('run.wake_project', {
  message: z.object({ project_id: z.string(), after: z.string() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})

/**
 * Cancels or, with `pause`, pauses the runs that a run started, one page at a time after a cursor. The descendants of
 * each page follow in further messages.
 */
export const descendantsQueue = workQueue('run.control_descendants', {
  message: z.object({
    run_id: z.string(),
    project_id: z.string(),
    /** Limits the page to runs started by this node execution. */
    execution_id: z.string().nullable(),
    pause: z.strictObject({ reason: z.string().nullable() }).nullable(),
    after: z.strictObject({ execution_id: z.string(), index: z.int() }).nullable(),
  }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})
export type DescendantsMessage = z.output<typeof descendantsQueue.message>

/** Cancels and deletes the runs of an orchestration that is marked as deleted, then the orchestration. */
export const removalQueue = entityMailbox('run.remove', {
  message: z.object({ orchestration_id: z.string(), project_id: z.string() }),
  key: message => message.orchestration_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})
export type RemovalMessage = z.output<typeof removalQueue.message>

/** Node executions for workers, executed concurrently; at most one message waits per execution. */
export const nodeExecutionQueue = entityMailbox('node.execute', {
  message: z.object({ execution_id: z.string(), run_id: z.string(), project_id: z.string() }),
  key: message => message.execution_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})
export type NodeMessage = z.output<typeof nodeExecutionQueue.message>

/** Wakes due and orphaned runs and node executions: the fallback for lost wake-ups. */
export const runSweep = workQueue('run.sweep', {
  message: z.object({ all: z.boolean().default(false) }),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
