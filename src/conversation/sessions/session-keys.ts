import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'

/** A conversation by the key that a client uses for it, for one agent and one end user or none. */
export type SessionKey = { project_id: string; agent_id: string; actor_id: string | null; key: string }

const keyCondition = ({ project_id, agent_id, actor_id, key }: SessionKey) => sql.fragment`
  k.project_id = ${project_id} and k.agent_id = ${agent_id} and k.actor_id is not distinct from ${actor_id} and k.key = ${key}`

/**
 * Returns the session of a key, or null. A session that its end user has deleted releases the key. By
 * session_keys_project_id_agent_id_actor_id_key_key.
 */
export const findSessionByKey = (db: Queryable, key: SessionKey): Promise<SessionRow | null> =>
  db.maybeOne(sessionKind.sql`
    select ${sessionKind.columns} from session_keys k join sessions t on t.id = k.session_id
    where ${keyCondition(key)} and t.hidden_at is null`)

/** Locks a key until the transaction ends: one of several concurrent creates makes the session, the others find it. */
export const lockSessionKey = (
  db: Queryable,
  { project_id, agent_id, actor_id, key }: SessionKey,
): Promise<unknown> => {
  const name = JSON.stringify(['session key', project_id, agent_id, actor_id, key])
  return db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended(${name}, 0))`)
}

const insertedRow = sql.type(z.object({ session_id: z.string() }))

/** Assigns a new or released key to a session. Returns false, after waiting for a concurrent transaction, if the key is assigned. */
export const insertSessionKey = async (db: Queryable, key: SessionKey, sessionId: string): Promise<boolean> =>
  (await db.maybeOne(insertedRow`
    insert into session_keys as k (project_id, agent_id, actor_id, key, session_id)
    values (${key.project_id}, ${key.agent_id}, ${key.actor_id}, ${key.key}, ${sessionId})
    on conflict (project_id, agent_id, actor_id, key) do update set session_id = excluded.session_id
      where exists (select from sessions s where s.id = k.session_id and s.hidden_at is not null)
    returning session_id`)) !== null

/** Assigns a key to another session. */
export const moveSessionKey = (db: Queryable, key: SessionKey, sessionId: string): Promise<unknown> =>
  db.query(voidStatement`update session_keys k set session_id = ${sessionId} where ${keyCondition(key)}`)
