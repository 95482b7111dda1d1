import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'

const latestRow = sql.type(
  z.object({ id: z.string(), status: z.string(), required_action: z.record(z.string(), z.unknown()).nullable() }),
)

/** Returns the last turn of a session, with the calls that it waits for. By generations_session. */
export const findLastTurn = (db: Queryable, sessionId: string) =>
  db.maybeOne(latestRow`
    select id, status, required_action from generations
    where session_id = ${sessionId} and initiator_generation_id is null order by created_at desc, id desc limit 1`)

const idRow = sql.type(z.object({ id: z.string() }))

/** Returns the given approvals of a session that are pending. Primary key. */
export const listPendingApprovals = (
  db: Queryable,
  sessionId: string,
  ids: readonly string[],
): Promise<readonly string[]> =>
  db.anyFirst(idRow`
    select id from approvals
    where id = any(${sql.array([...ids], 'text')}) and session_id = ${sessionId} and status = 'pending'`)

const placeRow = sql.type(z.object({ position: z.int(), is_last: z.boolean() }))

/**
 * Returns the position of a message of the end user by its client's id or its document, and whether nothing that the end
 * user sees follows it. By conversation_messages_idempotency and the primary key.
 */
export const findPlace = (db: Queryable, conversationId: string, messageId: string) =>
  db.maybeOne(placeRow`
    select m.position, not exists (
      select from conversation_messages later
      where later.conversation_id = m.conversation_id and later.position > m.position) as is_last
    from conversation_messages m
    where m.conversation_id = ${conversationId} and m.role = 'user' and m.operator_id is null
      and (m.idempotency_key = ${messageId} or m.document_id = ${messageId})
    order by m.position desc limit 1`)

/** Whether a fork has had no turn, and only messages of its parent. By generations_session and the primary keys. */
export const isUntouchedFork = (
  db: Queryable,
  fork: { id: string; conversation_id: string },
  parent: { conversation_id: string },
): Promise<boolean> =>
  db.exists(voidStatement`
    select where not exists (select from generations g where g.session_id = ${fork.id})
      and not exists (
        select from conversation_messages m where m.conversation_id = ${fork.conversation_id} and not exists (
          select from conversation_messages p
          where p.conversation_id = ${parent.conversation_id} and p.document_id = m.document_id))`)
