import { type LongWork, longWorkResult, underWay } from '../../core/api/long-work.ts'
import type { ExportRow } from './model.ts'

export const exportWork: LongWork<ExportRow> = {
  kind: 'playbook_export',
  read: 'getExport',
  cancel: null,
  args: id => ({ export_id: id }),
  async state({ record }, { status, error }) {
    const message = `The export is ${status}`
    if (status === 'queued' || status === 'running') return underWay(message)
    return { status: 'completed', message, result: longWorkResult(error, record) }
  },
}
