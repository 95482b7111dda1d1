import { type LongWork, longWorkResult, workInProgress } from '../core/api/long-work.ts'
import { BUSY, type FormationRow } from './model.ts'

/** The newest operation of a formation. */
export const formationWork: LongWork<FormationRow> = {
  kind: 'formation',
  read: 'getFormation',
  cancel: null,
  gone: { operation: 'deleteFormation', body: { success: true }, message: 'The formation was deleted' },
  args: id => ({ formation_id: id }),
  async state({ record }, { status, error }) {
    const message = `The formation is ${status.replace('_', ' ')}`
    if (BUSY.includes(status)) return workInProgress(message)
    return { status: 'completed', message, result: longWorkResult(status === 'active' ? null : error, record) }
  },
}
