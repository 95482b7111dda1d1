import { kind } from '../../core/api/kind.ts'
import { type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { lockConversation, removeConversation } from '../conversations/store.ts'
import { Session, type SessionRow, sessionHidden } from './model.ts'

/** Turns that wait or run (index conversation_turns_open). */
const openTurns = sql.fragment`from conversation_turns q
  where q.conversation_id = t.conversation_id and q.state in ('queued', 'running')`

/** Past its time to live, with nothing that waits or runs, and not written down yet. */
export const overdueCondition = sql.fragment`t.status = 'open' and t.expires_at < now() and not exists (select 1 ${openTurns})`

/** The status in force. */
export const sessionStatus = sql.fragment`case when ${overdueCondition} then 'expired' else t.status end`

export const sessionKind = kind({
  name: 'session',
  prefix: 'sess',
  table: 'sessions',
  references: [
    { kind: 'agent', column: 'agent_id', on_delete: 'follow', grantable: true },
    { kind: 'actor', column: 'actor_id', on_delete: 'null' },
  ],
  record: Session,
  hidden: sessionHidden,
  computed: {
    status: sessionStatus,
    generating_at: sql.fragment`(select q.started_at ${openTurns} and q.state = 'running')`,
    queued_turns: sql.fragment`(select count(*) ${openTurns} and q.state = 'queued')`,
    stored_status: sql.fragment`t.status`,
    actor_external_id: sql.fragment`(select a.external_id from actors a where a.id = t.actor_id)`,
  },
  events: [
    'created',
    'updated',
    'deleted',
    'closed',
    'expired',
    'tags_updated',
    'generation_started',
    'generation_requires_action',
    'generation_completed',
    'generation_failed',
  ],
  eventAliases: {
    generation_started: ['sessions.generation.started'],
    generation_requires_action: ['sessions.generation.requires_action'],
    generation_completed: ['sessions.generation.completed'],
  },
  eventNotes: 'generation_* add generation_id, trace_id and, when they apply, required_action or error',
  find: findSession,
  remove: removeSession,
})

/**
 * One session. Its lock is that of its conversation: whoever changes the one or the other holds it, so that a session's
 * state, its messages and its mailbox move together.
 */
export async function findSession(db: Queryable, id: string, lock = false): Promise<SessionRow | null> {
  if (lock)
    await db.query(voidStatement`
      select from conversations c where c.id = (select s.conversation_id from sessions s where s.id = ${id}) for update`)
  return db.maybeOne(sessionKind.sql`select ${sessionKind.columns} from sessions t where t.id = ${id}`)
}

/** Removes a session whose lock the caller holds and whose mailbox is empty, with its conversation. */
async function removeSession(tx: Tx, session: SessionRow): Promise<void> {
  const conversation = await lockConversation(tx, session.conversation_id)
  // The session's row goes with the conversation's.
  if (conversation) await removeConversation(tx, conversation)
  tx.emit(sessionKind, 'deleted', session)
}
