import { type LongWork, resultOf, underWay } from '../../core/api/long-work.ts'
import { type DecisionRow, isSettled } from './model.ts'

export const decisionWork: LongWork<DecisionRow> = {
  kind: 'decision',
  read: 'getDecision',
  cancel: null,
  args: id => ({ decision_id: id }),
  async state({ record }, row) {
    const message = `The decision is ${row.status}`
    if (!isSettled(row)) return underWay(message)
    return { status: 'completed', message, result: resultOf(row.error, record) }
  },
}
