import { type LongWork, longWorkResult, workInProgress } from '#core/api/long-work.ts'
import type { ExportRow } from './model.ts'

export const exportLongWork: LongWork<ExportRow> = {
  kind: 'playbook_export',
  read: 'getExport',
  cancel: null,
  args: id => ({ export_id: id }),
  async state({ record }, { status, error }) {
    const message = `Export is ${status}`
    if (status === 'queued' || status === 'running') return workInProgress(message)
    return { status: 'completed', message, result: longWorkResult(error, record) }
  },
}
