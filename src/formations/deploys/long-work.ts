import { type LongWork, longWorkResult, workInProgress } from '#core/api/long-work.ts'
import { BUSY_STATUSES, type FormationRow } from '../records/model.ts'

/** The latest operation of a formation as long-running work. */
export const formationWork: LongWork<FormationRow> = {
  kind: 'formation',
  read: 'getFormation',
  cancel: null,
  gone: { operation: 'deleteFormation', body: { success: true }, message: 'Formation deleted' },
  args: id => ({ formation_id: id }),
  async state({ record }, { status, error }) {
    const message = `Formation is ${status.replace('_', ' ')}`
    if (BUSY_STATUSES.includes(status)) return workInProgress(message)
    return { status: 'completed', message, result: longWorkResult(status === 'active' ? null : error, record) }
  },
}
