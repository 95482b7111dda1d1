import type { LongWork } from '../../core/api/long-work.ts'
import { type EvalRunRow, isLive } from './model.ts'

export const evalRunWork: LongWork<EvalRunRow> = {
  kind: 'eval_run',
  read: 'getEvalRun',
  cancel: 'cancelEvalRun',
  args: ({ id, eval_id }) => ({ eval_id, eval_run_id: id }),
  async state({ record }, row) {
    const { status, item_count, completed_count, errored_count, created_at, updated_at, error } = row
    const base = { created_at, updated_at, awaited: [], message: `The run is ${status}` }
    if (isLive(row))
      return {
        ...base,
        status: 'working',
        result: null,
        progress: { done: completed_count + errored_count, total: item_count },
      }
    if (status === 'canceled') return { ...base, status: 'cancelled', result: null, progress: null }
    return { ...base, status: 'completed', result: error ? { failure: error } : { body: record }, progress: null }
  },
}
