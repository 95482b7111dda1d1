import { deleteAllBytes } from '../../../content/storage/backends.ts'
import { kind, pickFields } from '../../../core/api/kind.ts'
import { Trace } from '../model.ts'
import { tracesOfFiles } from './path.ts'
import { deleteTraces, detachTraceFiles } from './store.ts'

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
  present: row => pickFields({ ...row, file_id: row.content_redacted_at === null ? row.file_id : null }, FIELDS),
  events: ['content_purged'],
  async removeAll(tx, ids) {
    await deleteAllBytes(tx, await detachTraceFiles(tx, ids))
    await deleteTraces(tx, ids)
  },
})
