import { z } from 'zod'
import { HOLDER } from '#core/base/holder.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { queues } from '#core/queues/queue.ts'
import { LOST_CLAIM, type LostClaim } from '#core/work/message-claims.ts'
import type { GenerationRow } from '../model.ts'

/**
 * Attempts at turns that ended before their turn did. They are recorded when the worker stops, or by the claim after a lost one,
 * so a turn without either costs nothing.
 */

/**
 * Start of an attempt at a turn in progress: by which process, the claim of its message that was lost before, and the lease of
 * messages.
 */
export type Continuation = { at: string; by: string; lostClaim: LostClaim | null; leaseSeconds: number }

/** Names of the queues whose messages execute turns. */
const turnQueues = () =>
  sql.array(
    queues.all().flatMap(({ name, concern }) => (concern === 'generation' ? [name] : [])),
    'text',
  )

type Turn = Pick<GenerationRow, 'id' | 'project_id' | 'conversation_id'>

/** Condition on messages (`j`) that execute a turn. */
const executes = ({ id, conversation_id }: Turn): Fragment => sql.fragment`
  j.name = any(${turnQueues()}) and (j.data ->> 'generation_id' = ${id} or j.data ->> 'conversation_id' = ${conversation_id})`

/** Select of the processes that have a message of a turn, with the ends of their leases. By job_i7 (name, group_id; active). */
const messageHolders = (turn: Turn, leaseSeconds: number): Fragment => sql.fragment`
  select j.group_tier as holder, j.heartbeat_on + ${leaseSeconds}::int * interval '1 s' as lease_expires_at
  from pgboss.job_common j where j.state = 'active' and j.group_id = ${turn.project_id} and ${executes(turn)}`

/** Waiting messages of a project that a claim searches for the message of a lost attempt, which is among the first of the index. */
const MAX_SEARCHED = 1000

/**
 * Select of the process that had a turn when its claim was lost, if the claim that follows has another message of the turn: a frozen
 * process may still have its message, otherwise it waits, perhaps as a suspect. By job_i7, muster_suspects and muster_waiting.
 */
const lostHolder = (turn: GenerationRow, leaseSeconds: number): Fragment => sql.fragment`
  select * from (
    select ${instanceOf(sql.fragment`m.holder`)} as instance_id, m.lease_expires_at
    from (${messageHolders(turn, leaseSeconds)}) m where m.holder <> ${HOLDER}
    union all
    select j.data -> ${LOST_CLAIM} ->> 'instance_id', (j.data -> ${LOST_CLAIM} ->> 'lease_expires_at')::timestamptz
    from (
      select name, data from pgboss.job_common where blocked and state < 'active' and name = any(${turnQueues()})
      union all
      (select name, data from pgboss.job_common
        where state < 'active' and not blocked and name = any(${turnQueues()}) and group_id = ${turn.project_id}
        limit ${MAX_SEARCHED})) j
    where ${executes(turn)}) l
  where l.lease_expires_at >= ${turn.updated_at}::timestamptz limit 1`

/** Name of a process; null if it has left. */
const instanceOf = (holder: Fragment): Fragment =>
  sql.fragment`(select h.instance_id from worker_heartbeats h where h.holder = ${holder} limit 1)`

/**
 * Returns the cte of a later claim, which records the end of the attempt before, if its worker was lost, and this
 * start. `before`: the turn as read by the claim.
 */
export function continuedCte(before: GenerationRow, continuation: Continuation, guard: Fragment): Fragment {
  const { at, by, lostClaim, leaseSeconds } = continuation
  if (before.handed_back)
    return sql.fragment`continued as (
      update generation_interruptions set continued_at = ${at}, continued_by = ${by}
      where generation_id = ${before.id} and number = ${before.attempt} and ${guard})`
  // A claim that was lost before the last write of the turn is the claim of an earlier attempt.
  const lost = lostClaim && new Date(lostClaim.lease_expires_at) >= new Date(before.updated_at) ? lostClaim : null
  const known = lost
    ? sql.fragment`select ${lost.instance_id}::text as instance_id, ${lost.lease_expires_at}::timestamptz as lease_expires_at`
    : lostHolder(before, leaseSeconds)
  return sql.fragment`continued as (
    insert into generation_interruptions as i
      (generation_id, number, instance_id, lease_expires_at, ended_at, ended_by, continued_at, continued_by)
    select ${before.id}, ${before.attempt}::int, l.instance_id, least(l.lease_expires_at, ${at}::timestamptz),
      least(l.lease_expires_at, ${at}::timestamptz), 'lease_lost', ${at}::timestamptz, ${by}
    from (select) one left join lateral (${known}) l on true
    where ${guard}
    on conflict (generation_id, number) do update set continued_at = excluded.continued_at, continued_by = excluded.continued_by)`
}

/** Returns the insert of the attempts of turns (`id`, `attempt`) of a cte that a stopping process has released. */
export const releasedInsert = (turns: Fragment, instanceId: string): Fragment => sql.fragment`
  insert into generation_interruptions (generation_id, number, instance_id, ended_at, ended_by)
  select id, attempt, ${instanceId}, now(), 'released' from ${turns}
  on conflict (generation_id, number) do update set ended_at = excluded.ended_at`

/** Returns the cte that records the attempts of turns of lost web processes, from the cte `gone` with their holders. */
export const lostHoldersCte: Fragment = sql.fragment`lost as (
  insert into generation_interruptions (generation_id, number, instance_id, lease_expires_at, ended_at, ended_by)
  select g.id, g.attempt, ${instanceOf(sql.fragment`gone.holder`)}, now(), now(), 'lease_lost'
  from gone join generations g on g.id = gone.generation_id
  where g.status = 'in_progress' and not g.handed_back
  on conflict do nothing)`

/** An interrupted attempt. */
export const Interruption = z.object({
  number: z.int(),
  instance_id: z.string().nullable(),
  lease_expires_at: z.string().nullable(),
  ended_at: z.string(),
  ended_by: z.enum(['released', 'lease_lost']),
  continued_at: z.string().nullable(),
  continued_by: z.string().nullable(),
})
export type Interruption = z.output<typeof Interruption>

/** The process that has a turn in progress: the holder of its message, or the web process that executes it. */
const Live = z.object({ instance_id: z.string().nullable(), lease_expires_at: z.string().nullable() })

const stateRow = sql.type(z.object({ interruptions: z.array(Interruption), live: Live.nullable() }))

/** Returns the interrupted attempts of a turn, oldest first, and the process that has it. By the primary keys and `messageHolders`. */
export const findAttempts = (
  db: Queryable,
  turn: Turn,
  leaseSeconds: number,
): Promise<{ interruptions: Interruption[]; live: z.output<typeof Live> | null }> =>
  db.one(stateRow`
    select coalesce((
        select json_agg(to_jsonb(i) - 'generation_id' order by i.number) from generation_interruptions i
        where i.generation_id = ${turn.id}), '[]') as interruptions,
      (select json_build_object('lease_expires_at', l.lease_expires_at, 'instance_id', ${instanceOf(sql.fragment`l.holder`)})
        from (
          select w.holder, null::timestamptz as lease_expires_at
          from generation_work w where w.generation_id = ${turn.id} and w.holder is not null
          union all
          ${messageHolders(turn, leaseSeconds)}
          limit 1) l) as live`)
