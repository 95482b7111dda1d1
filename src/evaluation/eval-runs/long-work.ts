import { type LongWork, longWorkResult, workInProgress } from '#core/api/long-work.ts'
import { type EvalRunRow, evalRunKind, isLive } from './model.ts'

export const evalRunWork: LongWork<EvalRunRow> = {
  kind: 'eval_run',
  read: 'getEvalRun',
  cancel: 'cancelEvalRun',
  async args(id, { pool }) {
    const row = await evalRunKind.find(pool, id)
    return row && { eval_id: row.eval_id, eval_run_id: id }
  },
  async state({ record }, row) {
    const { status, item_count, completed_count, errored_count, error } = row
    const message = `Eval run is ${status}`
    if (isLive(row))
      return { ...workInProgress(message), progress: { done: completed_count + errored_count, total: item_count } }
    if (status === 'canceled') return { status: 'cancelled', message }
    return { status: 'completed', message, result: longWorkResult(error, record) }
  },
}
