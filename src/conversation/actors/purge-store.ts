import { z } from 'zod'
import type { EndUser, ErasedBy } from '../../control/retention/erasure.ts'
import { newId } from '../../core/api/ids.ts'
import { idStatement, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { type WorkItemClaim, workItemTable } from '../../core/jobs/work-item.ts'
import type { ActorRow } from './model.ts'

const row = {
  principal: z.custom<PrincipalRecord>(),
  until: z.string().nullable(),
  counts: z.record(z.string(), z.int()),
}

/** It is never given up because workers were lost. */
const MAX_LOSSES = 1_000_000

/** Erasures of what there is of end users. */
export const actorPurges = workItemTable({
  table: 'actor_purges',
  entity: 'actor_id',
  owner: 'actors',
  row,
  maxLosses: MAX_LOSSES,
})
export type Purge = WorkItemClaim & z.output<z.ZodObject<typeof row>>

/** Asks for the erasure of an actor, whose row the caller has locked; the one that is under way where there is one. */
export const insertPurge = async (
  db: Queryable,
  actorId: string,
  principal: PrincipalRecord,
): Promise<{ id: string; asked: boolean }> => {
  const id = newId('job')
  const asked = await db.oneFirst(idStatement`
    insert into actor_purges (actor_id, id, principal) values (${actorId}, ${id}, ${jsonb(principal)})
    on conflict (actor_id) do update set actor_id = excluded.actor_id returning id`)
  return { id: asked, asked: asked === id }
}

/** The erasure that is under way of one of these actors. */
export const findActivePurge = (db: Queryable, actorIds: readonly string[]): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select id from actor_purges where actor_id = any(${sql.array([...actorIds], 'text')}) limit 1`)

const time = sql.type(z.object({ now: z.string() }))

/** The time of the database, by which what was made before is told from what was made later. */
export const purgeTime = (db: Queryable): Promise<string> => db.oneFirst(time`select clock_timestamp() as now`)

/** Adds to what an erasure has counted. */
export const addToCounts = (db: Queryable, actorId: string, counts: Record<string, number>) =>
  db.query(voidStatement`
    update actor_purges p set counts = p.counts || (
      select coalesce(jsonb_object_agg(n.key, n.value::bigint + coalesce((p.counts ->> n.key)::bigint, 0)), '{}')
      from jsonb_each_text(${jsonb(counts)}) n)
    where actor_id = ${actorId}`)

const counted = sql.type(z.object({ counts: row.counts }))

/** Ends an erasure that the caller holds; what it has counted. */
export async function endPurge(db: Queryable, claim: Purge): Promise<Record<string, number>> {
  const counts = await db.oneFirst(counted`select counts from actor_purges where actor_id = ${claim.entity}`)
  await actorPurges.end(db, claim)
  return counts
}

/**
 * An actor with its conversations, also those that were deleted. Indexes conversations_actor, conversation_messages_actor,
 * deleted_conversations_pkey, generations_actor.
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
