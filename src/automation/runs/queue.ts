import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

/** Wake-ups of runs: somebody has to look at the rows. */
export const runQueue = entityMailbox('run.advance', {
  message: z.object({ run_id: z.string(), project_id: z.string() }),
  key: message => message.run_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 10 },
})
export type RunMessage = z.output<typeof runQueue.message>

/**
 * Wake-ups by those who do not hold the row of the run: runs below it, turns, decisions. A wake-up of theirs that is dropped
 * because one waits already would be lost where that one is taken before they commit, so each is a message of its own, which
 * becomes a wake-up behind the commit.
 */
export const runWakeQueue = workQueue('run.wake', {
  message: runQueue.message,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})

/** Live runs of a project, behind one, that have to be looked at because the project was paused or resumed. */
export const projectRunWakeQueue = workQueue('run.wake_project', {
  message: z.object({ project_id: z.string(), after: z.string() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})

/**
 * Runs below a run that are stopped or, with `pause`, paused with it: a page of those that it started, behind a place. What
 * those started follows them.
 */
export const belowQueue = workQueue('run.control_descendants', {
  message: z.object({
    run_id: z.string(),
    project_id: z.string(),
    /** Only those that this attempt of a node started. */
    execution_id: z.string().nullable(),
    pause: z.strictObject({ reason: z.string().nullable() }).nullable(),
    after: z.strictObject({ execution_id: z.string(), index: z.int() }).nullable(),
  }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})
export type BelowMessage = z.output<typeof belowQueue.message>

/** An orchestration that is marked as deleted: its runs have to be stopped and deleted, and then it can be. */
export const removalQueue = entityMailbox('run.remove', {
  message: z.object({ orchestration_id: z.string(), project_id: z.string() }),
  key: message => message.orchestration_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})
export type RemovalMessage = z.output<typeof removalQueue.message>

/** Attempts of nodes that a worker makes, each beside the others; of one at most one message waits. */
export const nodeExecutionQueue = entityMailbox('node.execute', {
  message: z.object({ execution_id: z.string(), run_id: z.string(), project_id: z.string() }),
  key: message => message.execution_id,
  project: message => message.project_id,
  concern: 'orchestration',
  retry: { limit: 20 },
})
export type NodeMessage = z.output<typeof nodeExecutionQueue.message>

/** Looks for what is due, for what a lost worker left and for what no message told of: the floor under the wake-ups. */
export const runSweep = workQueue('run.sweep', {
  message: z.object({ all: z.boolean().default(false) }),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})
