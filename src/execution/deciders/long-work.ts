import type { LongWork } from '../../core/api/long-work.ts'
import { type DecisionRow, isSettled } from './model.ts'

export const decisionWork: LongWork<DecisionRow> = {
  kind: 'decision',
  read: 'getDecision',
  cancel: null,
  args: ({ id }) => ({ decision_id: id }),
  async state({ record }, row) {
    const { status, created_at, updated_at, error } = row
    const base = { created_at, updated_at, awaited: [], progress: null, message: `The decision is ${status}` }
    if (!isSettled(row)) return { ...base, status: 'working', result: null }
    return { ...base, status: 'completed', result: error ? { failure: error } : { body: record } }
  },
}
