import { kind } from '#core/api/kind.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { displayNameOf } from '#identity/users/display-name.ts'
import { lockConversation, removeConversation } from '../dialog/messages/store.ts'
import { Session, type SessionRow, sessionHidden } from './model.ts'
import { unreadCount } from './unread.ts'

/** Open turns of a session. By conversation_turns_open. */
const openTurnsClause = sql.fragment`from conversation_turns q
  where q.conversation_id = t.conversation_id and q.state in ('queued', 'running')`

/**
 * Condition that the expiry of a session `t` is due: past its time to live, under its agent, without open turns, not yet
 * stored.
 */
export const overdueCondition = sql.fragment`t.status = 'open' and t.control = 'agent' and t.expires_at < now() and not exists (select 1 ${openTurnsClause})`

/** Expression for the effective status. */
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
    generating_at: sql.fragment`(select q.started_at ${openTurnsClause} and q.state = 'running')`,
    queued_turns: sql.fragment`(select count(*) ${openTurnsClause} and q.state = 'queued')`,
    unread_count: unreadCount,
    assignee_name: displayNameOf(sql.fragment`t.assigned_to`),
    summary_error: sql.fragment`(select c.summary_error from conversations c where c.id = t.conversation_id)`,
    stored_status: sql.fragment`t.status`,
    operator_timed_out: sql.fragment`coalesce(t.operator_until <= now(), false)`,
    actor_external_id: sql.fragment`(select a.external_id from actors a where a.id = t.actor_id)`,
  },
  events: [
    'created',
    'updated',
    'deleted',
    'closed',
    'expired',
    'tags_updated',
    'taken_over',
    'handed_back',
    'attention_requested',
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
  eventNotes:
    'generation_* add generation_id, trace_id and, when they apply, required_action or error; taken_over adds operator_id and the generation_id of the running turn; handed_back adds reason (operator or timeout), operator_id and the generation_id of the turn that answers',
  find: findSession,
  remove: removeSession,
})

/**
 * Returns a session. Its lock is the lock of its conversation, so that session, messages and mailbox change under one
 * lock.
 */
export async function findSession(db: Queryable, id: string, lock = false): Promise<SessionRow | null> {
  if (lock)
    await db.query(voidStatement`
      select from conversations c where c.id = (select s.conversation_id from sessions s where s.id = ${id}) for update`)
  return db.maybeOne(sessionKind.sql`select ${sessionKind.columns} from sessions t where t.id = ${id}`)
}

/** Deletes a locked session with its conversation; the mailbox must be empty. */
export async function removeSession(tx: Tx, session: SessionRow): Promise<void> {
  const conversation = await lockConversation(tx, session.conversation_id)
  // Deletes the session's row by cascade.
  if (conversation) await removeConversation(tx, conversation)
  tx.emit(sessionKind, 'deleted', session)
}

/** Emits the deletion of a session, whose row is deleted with its conversation. */
export async function emitSessionDeleted(tx: Tx, id: string): Promise<void> {
  const session = await findSession(tx, id)
  if (session) tx.emit(sessionKind, 'deleted', session)
}
