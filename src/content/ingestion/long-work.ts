import { type LongWork, longWorkResult, workInProgress } from '#core/api/long-work.ts'
import type { DocumentRow } from '../documents/model.ts'

export const ingestionLongWork: LongWork<DocumentRow> = {
  kind: 'document',
  read: 'getDocument',
  cancel: null,
  args: id => ({ document_id: id }),
  async state({ record }, { status, error }) {
    const message = `Document is ${status}`
    if (status === 'pending' || status === 'processing') return workInProgress(message)
    if (status === 'withdrawn') return { status: 'cancelled', message }
    return { status: 'completed', message, result: longWorkResult(error, record) }
  },
}
