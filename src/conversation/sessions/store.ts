import { messageTextJoin } from '../../content/documents/message.ts'
import type { Tags } from '../../core/api/record.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import { all, type Fragment, jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import type { SessionRow, SessionStatus } from './model.ts'

/** Turns that wait or run (index conversation_turns_open). */
const openTurns = sql.fragment`from conversation_turns q
  where q.conversation_id = t.conversation_id and q.state in ('queued', 'running')`

/** Past its time to live, with nothing that waits or runs, and not written down yet (conversation, 10.4). */
const overdue = sql.fragment`t.status = 'open' and t.expires_at < now() and not exists (select 1 ${openTurns})`

/** The status in force. */
const effectiveStatus = sql.fragment`case when ${overdue} then 'expired' else t.status end`

/** Columns of a SessionRow over the alias `t`. */
export const sessionColumns = sql.fragment`t.id, t.project_id, t.agent_id, t.conversation_id, ${effectiveStatus} as status,
  t.status as stored_status, t.name, t.actor_id, t.tags, t.auto_generate, t.message_delay_seconds, t.inactivity_ttl_seconds,
  t.tool_context, t.last_activity_at, (select q.started_at ${openTurns} and q.state = 'running') as generating_at,
  (select count(*) ${openTurns} and q.state = 'queued') as queued_turns, t.forked_from_session_id, t.forked_from_position,
  t.created_at, t.updated_at, t.takeovers,
  (select a.external_id from actors a where a.id = t.actor_id) as actor_external_id`

/**
 * One session. Its lock is that of its conversation: whoever changes the one or the other holds it, so that a session's
 * state, its messages and its mailbox move together.
 */
export async function findSession(db: Queryable, id: string, lock = false): Promise<SessionRow | null> {
  if (lock)
    await db.query(sql.unsafe`
      select 1 from conversations c where c.id = (select s.conversation_id from sessions s where s.id = ${id}) for update`)
  return (await db.maybeOne(
    sql.unsafe`select ${sessionColumns} from sessions t where t.id = ${id}`,
  )) as SessionRow | null
}

export type SessionValues = {
  id: string
  project_id: string
  agent_id: string
  conversation_id: string
  name: string | null
  actor_id: string | null
  tags: Tags
  auto_generate: boolean
  message_delay_seconds: number | null
  inactivity_ttl_seconds: number
  tool_context: ToolContext | null
  forked_from_session_id?: string | null
  forked_from_position?: number | null
}

/** The time a session with the given activity ends; null for one that never does. */
const expiry = (since: Fragment, ttl: Fragment): Fragment =>
  sql.fragment`case when ${ttl} > 0 then ${since} + make_interval(secs => ${ttl}) end`

/** Adds an open session. */
export const insertSession = (db: Queryable, values: SessionValues): Promise<SessionRow> =>
  db.one(sql.unsafe`
    insert into sessions as t (id, project_id, agent_id, conversation_id, name, actor_id, tags, auto_generate,
      message_delay_seconds, inactivity_ttl_seconds, tool_context, forked_from_session_id, forked_from_position, expires_at)
    values (${values.id}, ${values.project_id}, ${values.agent_id}, ${values.conversation_id}, ${values.name},
      ${values.actor_id}, ${jsonb(values.tags)}, ${values.auto_generate}, ${values.message_delay_seconds},
      ${values.inactivity_ttl_seconds}, ${jsonb(values.tool_context)}, ${values.forked_from_session_id ?? null},
      ${values.forked_from_position ?? null}, ${expiry(sql.fragment`now()`, sql.fragment`${values.inactivity_ttl_seconds}::int`)})
    returning ${sessionColumns}`) as Promise<SessionRow>

/** What a PATCH may write. `reopened` counts the time to live from now. */
export type SessionChange = Partial<
  Pick<
    SessionRow,
    'name' | 'status' | 'tags' | 'auto_generate' | 'tool_context' | 'inactivity_ttl_seconds' | 'message_delay_seconds'
  >
> & { reopened?: boolean }

/** Writes the fields a change names, in one statement, under the conversation's lock. */
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
    change.message_delay_seconds !== undefined && sql.fragment`message_delay_seconds = ${change.message_delay_seconds}`,
    change.inactivity_ttl_seconds !== undefined && sql.fragment`inactivity_ttl_seconds = ${ttl}`,
    change.reopened === true && sql.fragment`last_activity_at = now()`,
    sql.fragment`expires_at = ${expiry(since, ttl)}`,
    sql.fragment`updated_at = now()`,
  ]
  return db.one(sql.unsafe`
    update sessions t set ${sql.join(sets.filter(set => set !== false) as Fragment[], sql.fragment`, `)} where t.id = ${id}
    returning ${sessionColumns}`) as Promise<SessionRow>
}

/** Notes a user message. The conversation's lock may have been long in coming, hence the clock instead of now(). */
export const touchSession = (db: Queryable, id: string): Promise<unknown> =>
  db.query(sql.unsafe`
    update sessions t set last_activity_at = c.at, expires_at = ${expiry(sql.fragment`c.at`, sql.fragment`t.inactivity_ttl_seconds`)}
    from (select clock_timestamp() as at) c where t.id = ${id}`)

/** Writes down the expiry of those among the sessions that are overdue; the caller holds their conversations' locks. */
export const writeExpiry = (db: Queryable, ids: readonly string[]): Promise<readonly SessionRow[]> =>
  db.any(sql.unsafe`
    update sessions t set status = 'expired', updated_at = now() where t.id = any(${sql.array([...ids], 'text')}) and ${overdue}
    returning ${sessionColumns}`) as Promise<readonly SessionRow[]>

/** Overdue sessions after a given one, oldest first (index sessions_expiry). */
export const overdueSessions = (
  db: Queryable,
  after: { expires_at: string; id: string } | null,
  limit: number,
): Promise<readonly { id: string; expires_at: string }[]> =>
  db.any(sql.unsafe`
    select t.id, t.expires_at from sessions t
    where ${all([
      overdue,
      after && sql.fragment`(t.expires_at, t.id) > (${after.expires_at}::timestamptz, ${after.id})`,
    ])}
    order by t.expires_at, t.id limit ${limit}`) as Promise<readonly { id: string; expires_at: string }[]>

/** Takes the locks of the sessions' conversations that are free; answers the sessions that were got. */
export const lockFree = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(sql.unsafe`
    select s.id from conversations c join sessions s on s.conversation_id = c.id
    where s.id = any(${sql.array([...ids], 'text')}) order by c.id for update of c skip locked`) as Promise<
    readonly string[]
  >

/** Holds one agent and end user together until the transaction ends, so that two creates cannot both find no session. */
export const lockPair = (db: Queryable, agentId: string, actorId: string): Promise<unknown> =>
  db.query(sql.unsafe`select pg_advisory_xact_lock(hashtextextended(${`session ${agentId} ${actorId}`}, 0))`)

/** Sessions of the pair that are written as open (index sessions_actor). */
export const openSessionsOf = (db: Queryable, agentId: string, actorId: string): Promise<readonly SessionRow[]> =>
  db.any(sql.unsafe`
    select ${sessionColumns} from sessions t
    where t.actor_id = ${actorId} and t.agent_id = ${agentId} and t.status = 'open' order by t.id`) as Promise<
    readonly SessionRow[]
  >

export type SessionAgent = {
  id: string
  project_id: string
  single_session_per_actor: boolean
}

/** The agent a session names, kept from being deleted until the transaction ends. */
export const shareAgent = (db: Queryable, id: string): Promise<SessionAgent | null> =>
  db.maybeOne(sql.unsafe`
    select a.id, a.project_id, a.single_session_per_actor from agents a where a.id = ${id} for key share`) as Promise<SessionAgent | null>

export const agentProject = (db: Queryable, id: string): Promise<string | null> =>
  db.maybeOneFirst(sql.unsafe`select project_id from agents where id = ${id}`) as Promise<string | null>

export type SessionMessageRow = {
  role: 'user' | 'assistant'
  content: string | null
  document_id: string
  position: number
  model: string | null
  actor_id: string | null
  generation_id: string | null
  created_at: string
}

/** Messages as the session routes show them, over m (messages), x (texts) and g (generations). */
export const messageColumns = sql.fragment`m.role, x.content, m.document_id, m.position, g.output ->> 'model' as model,
  m.actor_id, m.generation_id, m.created_at`
export const messageTables = sql.fragment`conversation_messages m ${messageTextJoin}
  left join generations g on g.id = m.generation_id`

/** Whether a conversation has a message at a position (constraint conversation_messages_position). */
export const hasMessageAt = (db: Queryable, conversationId: string, position: number): Promise<boolean> =>
  db.exists(sql.unsafe`
    select 1 from conversation_messages where conversation_id = ${conversationId} and position = ${position}`)

/** Copies the messages up to a position, or all: same texts, no idempotency keys. Returns how many there are. */
export const copyMessages = (
  db: Queryable,
  copy: { from: string; to: string; until: number | null },
): Promise<number> =>
  db.oneFirst(sql.unsafe`
    with copied as (
      insert into conversation_messages (conversation_id, document_id, position, role, actor_id, agent_id, generation_id,
        metadata, history, created_at)
      select ${copy.to}, document_id, position, role, actor_id, agent_id, generation_id, metadata, history, created_at
      from conversation_messages
      where conversation_id = ${copy.from} and (${copy.until}::int is null or position <= ${copy.until}::int)
      returning 1
    )
    update conversations set message_count = (select count(*) from copied) where id = ${copy.to} returning message_count`) as Promise<number>

/** Remembers which turn a message with an idempotency key asked for. */
export const noteRequestedTurn = (
  db: Queryable,
  message: { conversation_id: string; document_id: string; generation_id: string },
): Promise<unknown> =>
  db.query(sql.unsafe`
    update conversation_messages set requested_generation_id = ${message.generation_id}
    where conversation_id = ${message.conversation_id} and document_id = ${message.document_id}`)

export const requestedTurn = (db: Queryable, conversationId: string, documentId: string): Promise<string | null> =>
  db.maybeOneFirst(sql.unsafe`
    select requested_generation_id from conversation_messages
    where conversation_id = ${conversationId} and document_id = ${documentId}`) as Promise<string | null>

export const countTakeover = (db: Queryable, id: string): Promise<unknown> =>
  db.query(sql.unsafe`update sessions set takeovers = takeovers + 1 where id = ${id}`)

/** A status among the effective ones. */
export const statusCondition = (statuses: readonly SessionStatus[] | undefined): Fragment | null =>
  statuses ? sql.fragment`${effectiveStatus} = any(${sql.array([...statuses], 'text')})` : null

/** An open session of one end user whose agent allows one only, when the other end user has an open one with it too. */
export const pairConflict = (db: Queryable, from: string, to: string): Promise<string | null> =>
  db.maybeOneFirst(sql.unsafe`
    with open as (
      select t.id, t.agent_id, t.actor_id from sessions t
      where t.actor_id in (${from}, ${to}) and ${effectiveStatus} = 'open'
    )
    select kept.id from open moved join open kept on kept.agent_id = moved.agent_id
      join agents a on a.id = kept.agent_id and a.single_session_per_actor
    where moved.actor_id = ${from} and kept.actor_id = ${to} limit 1`) as Promise<string | null>

/** Gives the sessions of one end user to another. */
export const moveSessions = (db: Queryable, from: string, to: string): Promise<unknown> =>
  db.query(sql.unsafe`update sessions set actor_id = ${to}, updated_at = now() where actor_id = ${from}`)
