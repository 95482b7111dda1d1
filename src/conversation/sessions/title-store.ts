import { z } from 'zod'
import type { RecordedFailure } from '#core/base/errors.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { isRefusedMessage } from '../dialog/messages/refused.ts'
import { sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'

/** Requests a name after the first reply of a session that the vendor did not refuse. Returns false after later replies and for a repeated request. */
export const insertTitleWork = async (
  tx: Queryable,
  item: { conversation_id: string; id: string; generation_id: string; agent_id: string; agent_version: number },
): Promise<boolean> =>
  (
    await tx.query(voidStatement`
      insert into session_title_work (conversation_id, id, agent_id, agent_version)
      select ${item.conversation_id}, ${item.id}, ${item.agent_id}, ${item.agent_version}
      where not exists (
        select from conversation_messages m join generations g on g.id = m.generation_id
        where m.conversation_id = ${item.conversation_id} and m.role = 'assistant' and g.id <> ${item.generation_id}
          and g.status = 'completed' and not ${isRefusedMessage})
      on conflict (conversation_id) do nothing`)
  ).rowCount === 1

/**
 * Sets the name of a session that has none, and returns the session; null if it has one, or if one of the texts from which
 * the name was generated has been erased. Locks the texts against erasure, which then finds the name.
 */
export const setAutoName = (
  tx: Queryable,
  id: string,
  name: string,
  messages: readonly { document_id: string; content: string | null }[],
): Promise<SessionRow | null> => {
  const texts = messages.flatMap(({ document_id, content }) => (content === null ? [] : [document_id]))
  return tx.maybeOne(sessionKind.sql`
    with texts as materialized (
      select d.id from documents d where d.id = any(${sql.array(texts, 'text')}) order by d.id for key share)
    update sessions t set name = ${name}, auto_name = ${name}, title_error = null, updated_at = now()
    where t.id = ${id} and t.name is null and (select count(*) from texts) = ${texts.length}
    returning ${sessionKind.columns}`)
}

/** Stores why a session without a name was not named, and returns the session; null if it has a name. */
export const setTitleError = (tx: Queryable, id: string, error: RecordedFailure): Promise<SessionRow | null> =>
  tx.maybeOne(sessionKind.sql`
    update sessions t set title_error = ${jsonb(error)}, updated_at = now() where t.id = ${id} and t.name is null
    returning ${sessionKind.columns}`)

const autoNamedRow = sql.type(z.object({ id: z.string(), auto_name: z.string() }))

/** Returns sessions of conversations with a generated name. By conversations_actor and conversations_session. */
export const listAutoNamed = (
  db: Queryable,
  conversations: Fragment,
  limit: number,
): Promise<readonly { id: string; auto_name: string }[]> =>
  db.any(autoNamedRow`
    select s.id, s.auto_name from sessions s
    where s.conversation_id in (${conversations}) and s.auto_name is not null limit ${limit}`)

/** Erases the generated names of sessions, unless they were renamed, and returns the number of sessions. */
export const eraseAutoNames = async (tx: Queryable, ids: readonly string[]): Promise<number> =>
  (
    await tx.query(voidStatement`
      update sessions set name = nullif(name, auto_name), auto_name = null
      where id = any(${sql.array([...ids], 'text')}) and auto_name is not null`)
  ).rowCount
