import type { LongWork } from '../../core/api/long-work.ts'
import type { DocumentRow } from '../documents/model.ts'

export const ingestionWork: LongWork<DocumentRow> = {
  kind: 'document',
  read: 'getDocument',
  cancel: null,
  args: ({ id }) => ({ document_id: id }),
  async state({ record }, row) {
    const { status, created_at, updated_at, error } = row
    const base = { created_at, updated_at, awaited: [], progress: null, message: `The document is ${status}` }
    if (status === 'pending' || status === 'processing') return { ...base, status: 'working', result: null }
    if (status === 'withdrawn') return { ...base, status: 'cancelled', result: null }
    return { ...base, status: 'completed', result: error ? { failure: error } : { body: record } }
  },
}
