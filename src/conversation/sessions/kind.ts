import { kind } from '../../core/api/kind.ts'
import { presentSession, type SessionRow } from './model.ts'
import { removeRow } from './remove.ts'
import { findSession, sessionColumns } from './store.ts'

export const sessionKind = kind<SessionRow>({
  name: 'session',
  prefix: 'sess',
  table: 'sessions',
  tags: true,
  references: [
    { kind: 'agent', column: 'agent_id', on_delete: 'follow' },
    { kind: 'actor', column: 'actor_id', on_delete: 'null' },
  ],
  columns: sessionColumns,
  find: findSession,
  present: presentSession,
  remove: removeRow,
})
