import { type LongWork, longWorkResult, workInProgress } from '#core/api/long-work.ts'
import { type DecisionRow, isDecisionSettled } from './model.ts'

export const decisionLongWork: LongWork<DecisionRow> = {
  kind: 'decision',
  read: 'getDecision',
  cancel: null,
  args: id => ({ decision_id: id }),
  async state({ record }, row) {
    const message = `The decision is ${row.status}`
    if (!isDecisionSettled(row)) return workInProgress(message)
    return { status: 'completed', message, result: longWorkResult(row.error, record) }
  },
}
