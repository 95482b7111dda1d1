import type { LongWork } from '../../core/api/long-work.ts'
import type { ExportRow } from './model.ts'

export const exportWork: LongWork<ExportRow> = {
  kind: 'playbook_export',
  read: 'getExport',
  cancel: null,
  args: ({ id }) => ({ export_id: id }),
  async state({ record }, row) {
    const { status, created_at, updated_at, error } = row
    const base = { created_at, updated_at, awaited: [], progress: null, message: `The export is ${status}` }
    if (status === 'queued' || status === 'running') return { ...base, status: 'working', result: null }
    return { ...base, status: 'completed', result: error ? { failure: error } : { body: record } }
  },
}
