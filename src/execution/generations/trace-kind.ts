import { dropAll } from '../../content/storage/stores.ts'
import { kind, picked } from '../../core/api/kind.ts'
import { Trace } from './model.ts'
import { tracesOfFiles } from './trace-path.ts'
import { deleteTraces, takeTraceFiles } from './trace-store.ts'

const FIELDS = Object.keys(Trace.shape)

export const traceKind = kind({
  name: 'trace',
  prefix: 'trace',
  table: 'traces',
  references: [
    { kind: 'agent', column: 'agent_id', on_delete: 'force', grantable: true },
    { kind: 'file', column: 'file_id', on_delete: 'block', among: tracesOfFiles },
  ],
  record: Trace,
  // What is left in storage of a trace that keeps no content any more goes with its purge.
  present: row => picked({ ...row, file_id: row.content_redacted_at === null ? row.file_id : null }, FIELDS),
  events: ['content_purged'],
  async removeAll(tx, ids) {
    await dropAll(tx, await takeTraceFiles(tx, ids))
    await deleteTraces(tx, ids)
  },
})
