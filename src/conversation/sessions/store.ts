import { z } from 'zod'
import { messageTextJoin } from '#content/documents/message-text.ts'
import { allOf, type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { conversationKind } from '../dialog/messages/model.ts'
import { isRefusedMessage } from '../dialog/messages/refused.ts'
import {
  areRowsUnchanged,
  lockedRowsCtes,
  MessagePlace,
  messageOrigin,
  messageParts,
  messagePlace,
} from '../dialog/messages/store.ts'
import { overdueCondition, sessionKind, sessionStatus } from './kind.ts'
import type { ReplyPermit, SessionRow, SessionStatus } from './model.ts'

const { columns } = sessionKind
const generationIdRow = sql.type(z.object({ id: z.string().nullable() }))
const countRow = sql.type(z.object({ message_count: z.int() }))

const withPlaceRow = sql.type(
  sessionKind.row.extend({ ...MessagePlace.shape, conversation: z.custom<object>(), unchanged: z.boolean() }),
)

/**
 * Locks a session with its conversation and returns it with the conversation as jsonb (`rowFromJson`) and the place of a new
 * message. Reads again if one of them changed while the locks were awaited. By the primary keys.
 */
export async function lockWithPlace(
  db: Queryable,
  { id, conversation_id }: Pick<SessionRow, 'id' | 'conversation_id'>,
): Promise<(SessionRow & MessagePlace & { conversation: object }) | null> {
  const read = (conversation: Fragment, ctes: Fragment, unchanged: Fragment) =>
    db.maybeOne(withPlaceRow`
      ${ctes} select ${columns}, ${messagePlace(conversation_id)}, to_jsonb(c) - 'version' as conversation, ${unchanged} as unchanged
      from sessions t, ${conversation} c where t.id = ${id}`)
  const locked = await read(
    sql.fragment`conversation`,
    sql.fragment`with ${lockedRowsCtes(conversation_id)}`,
    areRowsUnchanged(conversation_id),
  )
  if (locked === null || locked.unchanged) return locked
  const current = sql.fragment`(select ${conversationKind.columns} from conversations t where t.id = ${conversation_id})`
  return read(current, sql.fragment``, sql.fragment`true`)
}

const ExpiringSession = z.object({ id: z.string(), expires_at: z.string() })
/** A session with its expiry. */
export type ExpiringSession = z.output<typeof ExpiringSession>
const expiringRow = sql.type(ExpiringSession)

/** Values of a new session. */
export type SessionValues = Pick<
  SessionRow,
  | 'id'
  | 'project_id'
  | 'agent_id'
  | 'conversation_id'
  | 'name'
  | 'actor_id'
  | 'tags'
  | 'auto_generate'
  | 'message_delay_seconds'
  | 'inactivity_ttl_seconds'
  | 'takeover_timeout_seconds'
  | 'tool_context'
  | 'knowledge_config'
> &
  Partial<Pick<SessionRow, 'forked_from_session_id' | 'forked_from_position' | 'ephemeral'>>

/** Expression for the expiry of a session; null without a time to live. */
const expiry = (since: Fragment, ttl: Fragment): Fragment =>
  sql.fragment`case when ${ttl} > 0 then ${since} + make_interval(secs => ${ttl}) end`

/** Inserts an open session. */
export const insertSession = (db: Queryable, values: SessionValues): Promise<SessionRow> =>
  db.one(sessionKind.sql`
    insert into sessions as t (id, project_id, agent_id, conversation_id, name, actor_id, tags, auto_generate,
      message_delay_seconds, inactivity_ttl_seconds, takeover_timeout_seconds, tool_context, knowledge_config, forked_from_session_id,
      forked_from_position, ephemeral, expires_at)
    values (${values.id}, ${values.project_id}, ${values.agent_id}, ${values.conversation_id}, ${values.name},
      ${values.actor_id}, ${jsonb(values.tags)}, ${values.auto_generate}, ${values.message_delay_seconds},
      ${values.inactivity_ttl_seconds}, ${values.takeover_timeout_seconds}, ${jsonb(values.tool_context)}, ${jsonb(values.knowledge_config)}, ${values.forked_from_session_id ?? null},
      ${values.forked_from_position ?? null}, ${values.ephemeral ?? false}, ${expiry(sql.fragment`now()`, sql.fragment`${values.inactivity_ttl_seconds}::int`)})
    returning ${columns}`)

/** Fields that a patch may change. `reopened` restarts the time to live. */
export type SessionChange = Partial<
  Pick<
    SessionRow,
    | 'name'
    | 'status'
    | 'tags'
    | 'auto_generate'
    | 'tool_context'
    | 'knowledge_config'
    | 'inactivity_ttl_seconds'
    | 'takeover_timeout_seconds'
    | 'message_delay_seconds'
    | 'state'
  >
> & { reopened?: boolean }

/** Updates the fields of a change in one statement. Requires the conversation's lock. */
export function updateSession(db: Queryable, id: string, change: SessionChange): Promise<SessionRow> {
  const ttl =
    change.inactivity_ttl_seconds === undefined
      ? sql.fragment`t.inactivity_ttl_seconds`
      : sql.fragment`${change.inactivity_ttl_seconds}::int`
  const since = change.reopened ? sql.fragment`now()` : sql.fragment`coalesce(t.last_activity_at, t.created_at)`
  const sets: (Fragment | false)[] = [
    change.name !== undefined && sql.fragment`name = ${change.name}`,
    change.status !== undefined && sql.fragment`status = ${change.status}`,
    change.tags !== undefined && sql.fragment`tags = ${jsonb(change.tags)}`,
    change.auto_generate !== undefined && sql.fragment`auto_generate = ${change.auto_generate}`,
    change.tool_context !== undefined && sql.fragment`tool_context = ${jsonb(change.tool_context)}`,
    change.knowledge_config !== undefined && sql.fragment`knowledge_config = ${jsonb(change.knowledge_config)}`,
    change.state !== undefined && sql.fragment`state = ${jsonb(change.state)}`,
    change.message_delay_seconds !== undefined && sql.fragment`message_delay_seconds = ${change.message_delay_seconds}`,
    change.inactivity_ttl_seconds !== undefined && sql.fragment`inactivity_ttl_seconds = ${ttl}`,
    change.takeover_timeout_seconds !== undefined &&
      sql.fragment`takeover_timeout_seconds = ${change.takeover_timeout_seconds},
        operator_until = case when t.control = 'operator' then now() + make_interval(secs => ${change.takeover_timeout_seconds}::int) end`,
    change.reopened === true && sql.fragment`last_activity_at = now()`,
    sql.fragment`expires_at = ${expiry(since, ttl)}`,
    sql.fragment`updated_at = now()`,
  ]
  return db.one(sessionKind.sql`
    update sessions t set ${sql.join(sets.filter(set => set !== false) as Fragment[], sql.fragment`, `)} where t.id = ${id}
    returning ${columns}`)
}

/**
 * Updates the last activity of a session. Uses the clock, because now() precedes the wait for the conversation's lock.
 * @param replyPermit of a message that finds the session under an operator
 */
export const touchSession = (tx: Outbox, id: string, replyPermit?: ReplyPermit): void =>
  tx.alongside(
    guard => sql.fragment`
    update sessions t set last_activity_at = c.at, reply_permit = coalesce(${jsonb(replyPermit)}, t.reply_permit),
      expires_at = ${expiry(sql.fragment`c.at`, sql.fragment`t.inactivity_ttl_seconds`)}
    from (select clock_timestamp() as at) c where t.id = ${id} and ${guard}`,
  )

/** Stores the expiry of overdue sessions. Requires the locks of their conversations. */
export const writeExpiry = (db: Queryable, ids: readonly string[]): Promise<readonly SessionRow[]> =>
  db.any(sessionKind.sql`
    update sessions t set status = 'expired', updated_at = now() where t.id = any(${sql.array([...ids], 'text')}) and ${overdueCondition}
    returning ${columns}`)

/** Returns overdue sessions after a given one, oldest first. By sessions_expiry. */
export const listOverdueSessions = (
  db: Queryable,
  after: ExpiringSession | null,
  limit: number,
): Promise<readonly ExpiringSession[]> =>
  db.any(expiringRow`
    select t.id, t.expires_at from sessions t
    where ${allOf([
      overdueCondition,
      after && sql.fragment`(t.expires_at, t.id) > (${after.expires_at}::timestamptz, ${after.id})`,
    ])}
    order by t.expires_at, t.id limit ${limit}`)

/** Locks the conversations of sessions, skipping locked ones, and returns the locked sessions. */
export const tryLockSessions = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select s.id from conversations c join sessions s on s.conversation_id = c.id
    where s.id = any(${sql.array([...ids], 'text')}) order by c.id for update of c skip locked`)

/**
 * Locks the pair of an agent and an end user until the transaction ends, so that one of two creates finds the other.
 */
export const lockPair = (db: Queryable, agentId: string, actorId: string): Promise<unknown> =>
  db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended(${`session ${agentId} ${actorId}`}, 0))`)

/** Returns sessions of a pair whose stored status is open. By sessions_actor. */
export const listOpenSessions = (db: Queryable, agentId: string, actorId: string): Promise<readonly SessionRow[]> =>
  db.any(sessionKind.sql`
    select ${columns} from sessions t
    where t.actor_id = ${actorId} and t.agent_id = ${agentId} and t.status = 'open' and not t.ephemeral order by t.id`)

/** Columns of messages in session routes, from m (messages), x (texts) and g (generations). */
export const messageColumns = sql.fragment`m.role, ${messageOrigin} as origin, x.content, ${messageParts} as parts, m.document_id, m.position, g.output ->> 'model' as model,
  m.actor_id, m.generation_id, u.display_name as author_name, ${isRefusedMessage} as refused, g.output -> 'annotations' as annotations, m.created_at`
export const messageTables = sql.fragment`conversation_messages m ${messageTextJoin}
  left join generations g on g.id = m.generation_id left join users u on u.id = m.operator_id`

/** Whether a conversation has a message at a position. By conversation_messages_position. */
export const hasMessageAt = (db: Queryable, conversationId: string, position: number): Promise<boolean> =>
  db.exists(voidStatement`
    select from conversation_messages where conversation_id = ${conversationId} and position = ${position}`)

/**
 * Copies messages up to a position, or all, with shared texts and without idempotency keys; they count as seen by the
 * end user. Returns their number.
 */
export const copyMessages = (
  db: Queryable,
  copy: { from: string; to: string; until: number | null },
): Promise<number> =>
  db.oneFirst(countRow`
    with copied as (
      insert into conversation_messages (conversation_id, document_id, position, role, origin, actor_id, agent_id, operator_id,
        generation_id, parts, media_descriptions, file_ids, metadata, history, note, created_at)
      select ${copy.to}, document_id, position, role, origin, actor_id, agent_id, operator_id, generation_id, parts,
        media_descriptions, file_ids, metadata, history, note, created_at
      from conversation_messages
      where conversation_id = ${copy.from} and (${copy.until}::int is null or position <= ${copy.until}::int)
      returning position
    ), seen as (
      update sessions set read_position = (select max(position) from copied) where conversation_id = ${copy.to}
    )
    update conversations set message_count = (select count(*) from copied) where id = ${copy.to} returning message_count`)

/** Stores the turn requested by a message with an idempotency key that was written before the turn. */
export const recordRequestedTurn = (
  db: Queryable,
  message: { conversation_id: string; document_id: string; generation_id: string },
): Promise<unknown> =>
  db.query(voidStatement`
    update conversation_messages set requested_generation_id = ${message.generation_id}
    where conversation_id = ${message.conversation_id} and document_id = ${message.document_id}`)

export const findRequestedTurn = (db: Queryable, conversationId: string, documentId: string): Promise<string | null> =>
  db.maybeOneFirst(generationIdRow`
    select requested_generation_id as id from conversation_messages
    where conversation_id = ${conversationId} and document_id = ${documentId}`)

export const incrementTakeovers = (db: Queryable, id: string): Promise<unknown> =>
  db.query(voidStatement`update sessions set takeovers = takeovers + 1 where id = ${id}`)

/** Erases the states of sessions and returns the sessions that had one. */
export const eraseStates = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update sessions t set state = null where t.id = any(${sql.array([...ids], 'text')}) and t.state is not null returning t.id`)

/** Condition on the effective status. */
export const statusCondition = (statuses: readonly SessionStatus[] | undefined): Fragment | null =>
  statuses ? sql.fragment`${sessionStatus} = any(${sql.array([...statuses], 'text')})` : null

/**
 * Returns an open session of one end user that conflicts with an open one of another, if their agent allows only one.
 */
export const findPairConflict = (db: Queryable, from: string, to: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    with open as (
      select t.id, t.agent_id, t.actor_id from sessions t
      where t.actor_id in (${from}, ${to}) and ${sessionStatus} = 'open' and not t.ephemeral
    )
    select kept.id from open moved join open kept on kept.agent_id = moved.agent_id
      join agents a on a.id = kept.agent_id and a.single_session_per_actor
    where moved.actor_id = ${from} and kept.actor_id = ${to} limit 1`)

/** Reassigns the sessions of an end user, and their keys unless the other end user has the same ones. */
export const moveSessions = (db: Queryable, from: string, to: string): Promise<unknown> =>
  db.query(voidStatement`
    with keys as (
      update session_keys k set actor_id = ${to} where k.actor_id = ${from} and not exists (
        select from session_keys o
        where (o.project_id, o.agent_id, o.actor_id, o.key) = (k.project_id, k.agent_id, ${to}, k.key)))
    update sessions set actor_id = ${to}, updated_at = now() where actor_id = ${from}`)

/** Returns ephemeral sessions that are a day old, oldest first. By sessions_ephemeral. */
export const listOldEphemeralSessions = (db: Queryable, limit: number): Promise<readonly SessionRow[]> =>
  db.any(sessionKind.sql`
    select ${columns} from sessions t where t.ephemeral and t.created_at < now() - interval '1 day'
    order by t.created_at, t.id limit ${limit}`)
