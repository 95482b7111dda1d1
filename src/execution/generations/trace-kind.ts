import { z } from 'zod'
import { dropAll } from '../../content/storage/stores.ts'
import { kind } from '../../core/api/kind.ts'
import { presentTrace, type TraceRow } from './model.ts'
import { deleteTraces, takeTraceFiles } from './store.ts'

export const traceKind = kind({
  name: 'trace',
  prefix: 'trace',
  table: 'traces',
  references: [
    { kind: 'agent', column: 'agent_id', on_delete: 'force' },
    { kind: 'file', column: 'file_id', on_delete: 'block' },
  ],
  row: z.custom<TraceRow>(),
  present: presentTrace,
  events: ['content_purged'],
  async removeAll(tx, ids) {
    await dropAll(tx, await takeTraceFiles(tx, ids))
    await deleteTraces(tx, ids)
  },
})
