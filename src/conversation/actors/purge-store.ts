import { z } from 'zod'
import type { EndUser, ErasedBy } from '#control/retention/erasure.ts'
import { newId } from '#core/base/ids.ts'
import { idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { ActorRow } from './model.ts'

/** Columns of a purge: who requested it, where its second pass ends, and the counts of erased records. */
export const purgeColumns = {
  principal: z.custom<PrincipalRecord>(),
  until: z.string().nullable(),
  counts: z.record(z.string(), z.int()),
}
export type PurgeColumns = z.output<z.ZodObject<typeof purgeColumns>>

/** Inserts the purge of an actor, whose row the caller has locked, or returns the active one. */
export const insertPurge = async (
  db: Queryable,
  actorId: string,
  principal: PrincipalRecord,
): Promise<{ id: string; isNew: boolean }> => {
  const id = newId('job')
  const active = await db.oneFirst(idStatement`
    insert into actor_purges (actor_id, id, principal) values (${actorId}, ${id}, ${jsonb(principal)})
    on conflict (actor_id) do update set actor_id = excluded.actor_id returning id`)
  return { id: active, isNew: active === id }
}

/** Returns the id of a purge in progress of one of these actors. */
export const findActivePurge = (db: Queryable, actorIds: readonly string[]): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select id from actor_purges where actor_id = any(${sql.array([...actorIds], 'text')}) limit 1`)

const timeRow = sql.type(z.object({ now: z.string() }))

/** Returns the database time, which separates earlier from later content. */
export const purgeTime = (db: Queryable): Promise<string> => db.oneFirst(timeRow`select clock_timestamp() as now`)

const countsRow = sql.type(z.object({ counts: purgeColumns.counts }))

/** The counts of a purge so far. */
export const purgeCounts = (db: Queryable, actorId: string): Promise<Record<string, number>> =>
  db.oneFirst(countsRow`select counts from actor_purges where actor_id = ${actorId}`)

/** Adds to the counts of a purge. */
export const addToCounts = (db: Queryable, actorId: string, counts: Record<string, number>) =>
  db.query(voidStatement`
    update actor_purges p set counts = p.counts || (
      select coalesce(jsonb_object_agg(n.key, n.value::bigint + coalesce((p.counts ->> n.key)::bigint, 0)), '{}')
      from jsonb_each_text(${jsonb(counts)}) n)
    where actor_id = ${actorId}`)

/**
 * Returns an actor with subqueries of its conversations, deleted ones included. By conversations_actor,
 * conversation_messages_actor, deleted_conversations_pkey and generations_actor.
 */
export const endUserOf = ({ id, project_id }: ActorRow): EndUser => {
  const ownConversations = sql.fragment`select id from conversations where actor_id = ${id}`
  return {
    id,
    project_id,
    ownConversations,
    conversations: sql.fragment`
      ${ownConversations} union select conversation_id from conversation_messages where actor_id = ${id}
      union select conversation_id from deleted_conversations where actor_id = ${id}
      union select conversation_id from generations where actor_id = ${id} and conversation_id is not null`,
  }
}

export const stampOf = ({ type, id }: PrincipalRecord): ErasedBy => ({ type, id })
