import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

const item = z.object({ result_id: z.string(), eval_run_id: z.string(), project_id: z.string() })
const concern = 'evaluation'
const project = (message: { project_id: string }): string => message.project_id

/** Items to execute. */
export const itemQueue = workQueue('eval.execute_item', { message: item, project, concern, retry: { limit: 2 } })
export type EvalItemMessage = z.output<typeof itemQueue.message>

/** Items with an output whose scorers make calls. */
export const scoreQueue = workQueue('eval.score_item', { message: item, project, concern, retry: { limit: 2 } })

/** Runs with a result for every item. */
export const evalRunQueue = entityMailbox('eval.complete_run', {
  message: z.object({ eval_run_id: z.string(), project_id: z.string() }),
  key: message => message.eval_run_id,
  project,
  concern,
  retry: { limit: 4 },
})
export type EvalRunMessage = z.output<typeof evalRunQueue.message>

/** Sweep for deferred items and stale runs, as a fallback for lost messages. */
export const evalSweepQueue = workQueue('eval.sweep', {
  message: z.object({}),
  concern,
  retry: { limit: 0 },
  leaseSeconds: 60,
})
