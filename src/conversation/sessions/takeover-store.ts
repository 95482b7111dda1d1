import { z } from 'zod'
import { type Fragment, idStatement, jsonb, type Queryable, sql } from '#core/db/sql.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { isShown } from './end-user.ts'
import { sessionKind } from './kind.ts'
import { type Attention, type ReplyPermit, SessionAssignee, type SessionRow } from './model.ts'

/** Expression for the end of a takeover without further operator messages; null without a timeout. */
const timeout: Fragment = sql.fragment`clock_timestamp() + make_interval(secs => t.takeover_timeout_seconds)`

/** Puts a session under an operator. Requires the conversation's lock. */
export const writeTakeover = (
  db: Queryable,
  id: string,
  to: { assigned_to: string; reply_permit: ReplyPermit },
): Promise<SessionRow> =>
  db.one(sessionKind.sql`
    update sessions t set control = 'operator', assigned_to = ${to.assigned_to}, reply_permit = ${jsonb(to.reply_permit)},
      operator_until = ${timeout}, updated_at = now()
    where t.id = ${id} returning ${sessionKind.columns}`)

/**
 * Returns a session to its agent, without a request for a person, and restarts its time to live. Requires the
 * conversation's lock.
 */
export const writeHandback = (db: Queryable, id: string): Promise<SessionRow> =>
  db.one(sessionKind.sql`
    update sessions t set control = 'agent', assigned_to = null, attention = null, reply_permit = null, operator_until = null,
      last_activity_at = now(), updated_at = now(),
      expires_at = case when t.inactivity_ttl_seconds > 0 then now() + make_interval(secs => t.inactivity_ttl_seconds) end
    where t.id = ${id} returning ${sessionKind.columns}`)

/** Restarts the timeout of a takeover. */
export const touchTakeover = (tx: Outbox, id: string): void =>
  tx.alongside(guard => sql.fragment`update sessions t set operator_until = ${timeout} where t.id = ${id} and ${guard}`)

/** Sets or clears the request for a person. Requires the conversation's lock. */
export const writeAttention = (db: Queryable, id: string, attention: Attention | null): Promise<SessionRow> =>
  db.one(sessionKind.sql`
    update sessions t set attention = ${jsonb(attention)}, updated_at = now()
    where t.id = ${id} returning ${sessionKind.columns}`)

/** Returns open sessions whose takeover has timed out, by ID after a given one. By sessions_operator_until. */
export const listTimedOutSessions = (db: Queryable, after: string, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select t.id from sessions t
    where t.operator_until <= now() and t.status = 'open' and t.id > ${after}
    order by t.id limit ${limit}`)

const shownMessageRow = sql.type(z.object({ role: z.enum(['user', 'assistant']), position: z.int() }))

/** Returns the last message of a conversation that the end user sees. By conversation_messages_position. */
export const findLastShownMessage = (db: Queryable, conversationId: string) =>
  db.maybeOne(shownMessageRow`
    select m.role, m.position from conversation_messages m
    where m.conversation_id = ${conversationId} and ${isShown}
    order by m.position desc limit 1`)

/** Returns sessions of an end user, by ID after a given one. By sessions_actor. */
export const listSessionsOfActor = (
  db: Queryable,
  actorId: string,
  after: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select t.id from sessions t where t.actor_id = ${actorId} and t.id > ${after} order by t.id limit ${limit}`)

/** Erases the reasons of requests made until a time and returns their sessions. */
export const eraseAttention = (db: Queryable, ids: readonly string[], until: string): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update sessions t set attention = t.attention || '{"reason": null}'
    where t.id = any(${sql.array([...ids], 'text')}) and t.attention ->> 'reason' is not null
      and (t.attention ->> 'since')::timestamptz <= ${until}::timestamptz
    returning t.id`)

const assigneeRow = sql.type(SessionAssignee)

/** Returns the users who are assigned to sessions `t` that a condition selects. By sessions_operated or sessions_assigned. */
export const listSessionAssignees = (db: Queryable, condition: Fragment) =>
  db.any(assigneeRow`
    select t.assigned_to as user_id, u.display_name as name, count(*)::int as session_count
    from sessions t join users u on u.id = t.assigned_to
    where t.control = 'operator' and ${condition}
    group by t.assigned_to, u.display_name order by u.display_name nulls last, t.assigned_to limit 500`)

/** Adds up the sessions of users that several cells have listed, in the same order. */
export const addUpAssignees = (db: Queryable, listed: readonly z.output<typeof SessionAssignee>[]) =>
  db.any(assigneeRow`
    select user_id, name, sum(session_count)::int as session_count
    from jsonb_to_recordset(${jsonb(listed)}) as t (user_id text, name text, session_count int)
    group by 1, 2 order by 2 nulls last, 1 limit 500`)
