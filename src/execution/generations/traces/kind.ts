import { RESERVED } from '#content/paths.ts'
import { deleteAllBytes } from '#content/storage/backends.ts'
import { kind, pickFields } from '#core/api/kind.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { Trace } from '../model.ts'
import { deleteTraces, detachTraceFiles } from './store.ts'

const DIRECTORY = `${RESERVED}/traces/`

/** Path of the steps file of a trace. The trigger files_of_traces parses the trace id from it too. */
export const traceFilePath = (traceId: string): string => `${DIRECTORY}${traceId}.json`

/** Subquery of the trace ids in file paths, in the collation of the primary key of traces, which differs from paths. */
const tracesOfFiles = (fileIds: Fragment): Fragment => sql.fragment`
  select split_part(split_part(path, '/', 4), '.', 1) collate "default" from files
  where id in (${fileIds}) and starts_with(path, ${DIRECTORY})`

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
  // The file of a redacted trace is deleted by its purge.
  present: row => pickFields({ ...row, file_id: row.content_redacted_at === null ? row.file_id : null }, FIELDS),
  events: ['content_purged'],
  async removeAll(tx, ids) {
    await deleteAllBytes(tx, await detachTraceFiles(tx, ids))
    await deleteTraces(tx, ids)
  },
})
