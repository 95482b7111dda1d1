import { z } from 'zod'
import { entityMailbox, workQueue } from '../../core/jobs/queue.ts'

const item = z.object({ result_id: z.string(), eval_run_id: z.string(), project_id: z.string() })
const concern = 'evaluation'
const project = (message: { project_id: string }): string => message.project_id

/** Items whose turns are to be made. */
export const itemQueue = workQueue('eval.execute_item', { message: item, project, concern, retry: { limit: 2 } })
export type EvalItemMessage = z.output<typeof itemQueue.message>

/** Items that were answered and whose scorers call something. */
export const scoreQueue = workQueue('eval.score_item', { message: item, project, concern, retry: { limit: 2 } })

/** Runs of which every item has a result. */
export const evalRunQueue = entityMailbox('eval.complete_run', {
  message: z.object({ eval_run_id: z.string(), project_id: z.string() }),
  key: message => message.eval_run_id,
  project,
  concern,
  retry: { limit: 4 },
})
export type EvalRunMessage = z.output<typeof evalRunQueue.message>

/** Looks for runs that nobody works on: the floor under the messages. */
export const evalSweepQueue = workQueue('eval.sweep', {
  message: z.object({}),
  concern,
  retry: { limit: 0 },
  leaseSeconds: 60,
})
