import { type Fragment, sql } from '../db/sql.ts'
import { HOLDER } from '../process/holder.ts'
import type { Queue, SqlExecutor } from './queue.ts'

/**
 * The statements on pg-boss's table that its public face lacks or does not prepare. Dead-lettering and heartbeats are
 * pg-boss's own. They name the columns and indexes of pg-boss 12.35 (schema 37); test/core/queue.test.ts fails when they
 * change.
 */

/** A message as claimed. `retryCount` names the attempt: what settles it is guarded by the pair. */
export type MessageClaim = {
  id: string
  data: object
  retryCount: number
  retryLimit: number
  key: string | null
  project: string | null
}

const columns = `j.id, j.data, j.retry_count as "retryCount", j.retry_limit as "retryLimit", j.singleton_key as "key",
  j.group_id as "project"`

// A scalar subquery is looked up in job_i3 for each candidate. As `not exists` PostgreSQL turns it into a join, which on
// a table without statistics read every waiting message: 35 ms for 10 messages out of 10,000 instead of 0.9.
const none = (state: 'active' | 'created') => `(
        select 1 from pgboss.job_common other
        where other.name = j.name and other.policy = 'stately' and other.state = '${state}'
          and coalesce(other.singleton_key, '') = coalesce(j.singleton_key, '') limit 1) is null`

// pg-boss's fetch of a stately queue finds nothing at all while the oldest waiting message's key is active: activating
// it violates job_i3. So a key that is active is skipped here, and of a key that waits twice, once fresh and once for its
// retry, only the fresh one is taken.
const claimable = (policy: Queue<any>['policy']) => `
      j.name = $1 and j.state < 'active' and not j.blocked and j.start_after <= now()
      ${policy === 'stately' ? `and ${none('active')} and (j.state <> 'retry' or ${none('created')})` : ''}`

// Our messages have no tier of their group, which bounds pg-boss's own fetch: the column names the process that holds the message.
// The array keeps PostgreSQL from joining the whole table when its statistics are stale.
const activate = `
  update pgboss.job_common j
  set state = 'active', started_on = now(), heartbeat_on = now(),
    retry_count = case when j.started_on is null then j.retry_count else j.retry_count + 1 end, group_tier = '${HOLDER}'
  where j.name = $1 and j.id = any (array(select id from next))
  returning ${columns}`

// job_i11 serves the order.
const oldestFirst = (policy: Queue<any>['policy']) => `
  with next as (
    select j.id from pgboss.job_common j where ${claimable(policy)}
    order by j.priority desc, j.created_on
    limit $2
    for update skip locked
  )
  ${activate}`

/** Projects with room for more that one claim considers; where more of them wait, the ring brings each its turn. */
const PROJECTS = 32

// Whether a message is due that the claim does not take: one whose key is active waits for the end of that.
const moreDue = `exists (
        select from pgboss.job_common j
        where j.name = $1 and j.state < 'active' and not j.blocked and j.start_after <= now()
          and j.id <> all (array(select id from next)))`

// `ring` steps through the projects that have something to claim, beginning behind $3, the one served last, and from the
// end to the start again: one lookup a project in muster_waiting (queue.ts), whatever waits behind its first message.
// `turn` adds what each holds in the deployment, counted in job_i7. Of each project `candidate` takes as many messages as
// are claimed at most, but only the first when there are enough projects. A slot goes to the project that will hold the
// fewest then, and between equals to the next in the ring: by age, a project with a long backlog would be served first
// whenever nobody holds anything. Beyond its share of this process ($5 slots; $4 has what projects hold here) a project
// comes after all others, and only into the first $6 slots. Rows that another worker is claiming are skipped.
//
// A claim takes 0.2 ms when nothing waits, 0.5 ms of 10,000 messages of one project, 1 ms of 20 projects and 1.5 ms of
// 1,000. It is prepared, because planning it takes 2 ms.
const inTurn = (policy: Queue<any>['policy']) => `
  with recursive ring (project, place, room, round) as (
    select $3::text, 0, 0, $3 = ''
    union all
    select step.project, r.place + 1, r.room + (coalesce(($4::jsonb ->> step.project)::int, 0) < $5)::int, step.round
    from ring r
    cross join lateral (
      (select j.group_id as project, r.round from pgboss.job_common j
        where ${claimable(policy)} and j.group_id > r.project order by j.group_id limit 1)
      union all
      (select j.group_id, true from pgboss.job_common j
        where not r.round and ${claimable(policy)} and j.group_id > '' order by j.group_id limit 1)
      limit 1
    ) step
    where r.room < ${PROJECTS} and ($3 = '' or not step.round or step.project <= $3)
  ), turn as materialized (
    select project, place, coalesce(($4::jsonb ->> project)::int, 0) as here, (
      select count(*) from pgboss.job_common a
      where a.name = $1 and a.state = 'active' and a.group_id = ring.project) as held
    from ring where place > 0
  ), candidate as (
    select m.id, t.project, t.here + m.nth > $5 as beyond,
      row_number() over (order by t.here + m.nth > $5, t.held + m.nth, t.place) as position
    from turn t
    cross join lateral (
      select j.id, row_number() over (order by j.group_id, j.priority desc, j.created_on) as nth
      from pgboss.job_common j
      where ${claimable(policy)} and j.group_id between t.project and t.project
      order by j.group_id, j.priority desc, j.created_on
      limit case when (select count(*) from turn) < $2 then $2 else 1 end
    ) m
  ), fitting as materialized (
    select * from candidate where not beyond or position <= $6
  ), next as materialized (
    select m.id, f.project, f.position
    from (select * from fitting order by position) f
    cross join lateral (
      select j.id from pgboss.job_common j
      where j.name = $1 and j.id = f.id and j.state < 'active'
      for update skip locked
    ) m
    limit $2
  ), claimed as (${activate})
  select state.*, claimed.* from (
    select (select count(*)::int from fitting) as found,
      (select project from next order by position desc limit 1) as last,
      ${policy === 'stately' ? moreDue : 'false'} as "othersWait"
  ) state left join claimed on true`

// pg-boss hands the text to pg as it is, and pg takes a statement with its name in place of a text.
const prepared = (name: string, text: string) => () => ({ name, text }) as unknown as string

const statements = {
  standard: { oldest: prepared('oldest', oldestFirst('standard')), turn: prepared('turn', inTurn('standard')) },
  stately: {
    oldest: prepared('oldest_stately', oldestFirst('stately')),
    turn: prepared('turn_stately', inTurn('stately')),
  },
}

/** What one claim may take. The rest is for queues whose messages have projects. */
export type MessageClaimRequest = {
  limit: number
  /** The project that was served last: the turn is the next one's. */
  last: string
  /** Messages each project holds in this process, and how many it may hold while others wait. */
  held: ReadonlyMap<string, number>
  share: number
  /** Of the messages claimed, the first so many may be of projects that hold their share, when nobody else waits. */
  borrow: number
}

/**
 * `more`: others wait that this claim did not get to. `othersWait`: some are due that it did not take, in a queue with keys
 * perhaps because their keys are active.
 */
export type ClaimedMessages = { jobs: MessageClaim[]; more: boolean; othersWait: boolean; last: string }

/**
 * Claims due messages. Those of queues without projects are taken oldest first. Otherwise slots go in turn to the
 * projects that hold the fewest messages of the queue in the deployment, and within a project the oldest are taken first.
 * Those of a higher priority come before older ones in both cases.
 * @returns null when another worker won the same key: claim again
 */
export async function claimMessages(
  db: SqlExecutor,
  queue: Queue<any>,
  request: MessageClaimRequest,
): Promise<ClaimedMessages | null> {
  const { limit, last, held, share, borrow } = request
  const { oldest, turn } = statements[queue.policy]
  try {
    if (!queue.project) {
      const jobs: MessageClaim[] = (await db.executeSql(oldest(), [queue.name, limit])).rows
      return { jobs, more: jobs.length === limit, othersWait: true, last }
    }
    const here = JSON.stringify(Object.fromEntries(held))
    const { rows } = await db.executeSql(turn(), [queue.name, limit, last, here, share, borrow])
    const [state] = rows
    const jobs: MessageClaim[] = rows.filter(row => row.id !== null)
    const more = jobs.length === limit || state.found > jobs.length
    return { jobs, more, othersWait: state.othersWait, last: state.last ?? last }
  } catch (error) {
    if ((error as { code?: string }).code === UNIQUE_VIOLATION) return null
    throw error
  }
}

const UNIQUE_VIOLATION = '23505'

/** An attempt at a message. */
type Attempt = Pick<MessageClaim, 'id' | 'retryCount'>

const attemptValues = (attempts: Attempt[]) => [
  attempts.map(({ id }) => id),
  attempts.map(({ id, retryCount }) => `${id}:${retryCount}`),
]

const isAttempt = (job: string, pairs: string) =>
  `(${job}.id::text || ':' || ${job}.retry_count) = any (${pairs}::text[])`

// As pg-boss completes, but prepared: to plan it takes longer than to run it.
const completeSql = `
  update pgboss.job_common j set state = 'completed', completed_on = now()
  where j.name = $1 and j.id = any ($2::uuid[]) and j.state = 'active' and ${isAttempt('j', '$3')}
  returning j.id`

const completion = prepared('complete', completeSql)

/** The completion of an attempt as part of another statement. */
export const completionCte = (
  queue: Queue<any>,
  { id, retryCount }: Attempt,
  guard: Fragment,
): Fragment => sql.fragment`
  update pgboss.job_common set state = 'completed', completed_on = now()
  where name = ${queue.name} and id = ${id}::uuid and retry_count = ${retryCount} and state = 'active' and ${guard}`

/** Completes attempts. Returns the ids of those that were still ours. */
export async function completeMessages(db: SqlExecutor, queue: Queue<any>, attempts: Attempt[]): Promise<Set<string>> {
  const { rows } = await db.executeSql(completion(), [queue.name, ...attemptValues(attempts)])
  return new Set(rows.map(row => row.id as string))
}

/**
 * Has an attempt tried again in `delayMs`. `error` is stored with the message. Returns `kept` when the message waits for
 * its retry, `merged` when another retry of the same key waits already, `lost` when the attempt was no longer ours.
 */
export async function scheduleRetry(
  db: SqlExecutor,
  queue: Queue<any>,
  attempt: Attempt,
  delayMs: number,
  error: object,
): Promise<'kept' | 'merged' | 'lost'> {
  const fence = `name = $1 and id = $2 and retry_count = $3 and state = 'active'`
  const values = [queue.name, attempt.id, attempt.retryCount]
  try {
    const { rows } = await db.executeSql(
      `update pgboss.job_common
       set state = 'retry', start_after = now() + $4 * interval '1 ms', heartbeat_on = null, output = $5::jsonb
       where ${fence} returning id`,
      [...values, delayMs, JSON.stringify(error)],
    )
    return rows.length === 1 ? 'kept' : 'lost'
  } catch (failure) {
    if ((failure as { code?: string }).code !== UNIQUE_VIOLATION) throw failure
    const { rows } = await db.executeSql(
      `update pgboss.job_common set state = 'completed', completed_on = now(), output = $4::jsonb
       where ${fence} returning id`,
      [...values, JSON.stringify(error)],
    )
    return rows.length === 1 ? 'merged' : 'lost'
  }
}

// Without a start the next claim does not count the attempt. A key that has a fresh message waiting needs no second.
const handBackSql = `
  update pgboss.job_common j
  set state = (case when w.waits then 'completed' else 'created' end)::pgboss.job_state,
    completed_on = case when w.waits then now() end,
    started_on = null, heartbeat_on = null, start_after = now() + $3 * interval '1 ms'
  from pgboss.job_common me
  cross join lateral (select me.policy = 'stately' and exists (
    select from pgboss.job_common other
    where other.name = $1 and other.policy = 'stately' and other.state = 'created'
      and coalesce(other.singleton_key, '') = coalesce(me.singleton_key, '')) as waits) w
  where me.name = $1 and j.name = $1 and j.id = me.id and me.id = any ($4::uuid[])
    and me.state = 'active' and j.state = 'active' and ${isAttempt('j', '$2')}
  returning j.id`

/**
 * Gives claimed messages back, available again in `delayMs`, the attempt not counted. Returns the ids given back, of which
 * workers are to be woken: the others were no longer ours.
 */
export async function requeueMessages(
  db: SqlExecutor,
  queue: Queue<any>,
  attempts: Attempt[],
  delayMs: number,
): Promise<string[]> {
  const [ids, pairs] = attemptValues(attempts)
  for (let tries = 0; ; tries++) {
    try {
      const { rows } = await db.executeSql(handBackSql, [queue.name, pairs, delayMs, ids])
      return rows.map(row => row.id)
    } catch (error) {
      // A fresh message of a key arrived in between; now it is seen.
      if ((error as { code?: string }).code !== UNIQUE_VIOLATION || tries === 3) throw error
    }
  }
}

// job_i7 (name, group_id; active) serves it, and the order makes sure of it: every message has a group. Renewing the
// heartbeat makes this process the only one that deals with the message for another lease.
const expiredSql = `
  update pgboss.job_common j set heartbeat_on = now()
  where j.name = $1 and j.state = 'active' and j.id = any (array(
    select e.id from pgboss.job_common e
    where e.name = $1 and e.state = 'active' and e.group_id is not null
      and e.heartbeat_on < now() - $2 * interval '1 s'
    order by e.name, e.group_id limit 100 for update skip locked))
  returning ${columns}`

/** Takes over messages whose lease ran out. */
export async function takeOverExpired(db: SqlExecutor, queue: Queue<any>): Promise<MessageClaim[]> {
  return (await db.executeSql(expiredSql, [queue.name, queue.leaseSeconds])).rows
}

/**
 * What waits in a queue: `due` now, `expired` when a lease ran out, `nextMs` until the next message is due or the next
 * lease ends.
 */
export type QueueBacklog = { name: string; due: boolean; expired: boolean; nextMs: number | null }

// job_i11 (name, priority, created_on, start_after; waiting) serves `due`, which ends with the first message that is, and
// `next_ms`, which reads all that is delayed; job_i7 (name, group_id; active) serves the leases. `limit` and
// `materialized` keep PostgreSQL from reading whatever is due, and from doing it four times. It takes 0.3 ms for all
// queues of a worker, 24 ms more where 100,000 messages are delayed.
const waitingSql = `
  with queue as materialized (
    select q.name, q.lease_seconds, (
      select true from pgboss.job_common j
      where j.name = q.name and j.state < 'active' and not j.blocked and j.start_after <= now() limit 1) as due
    from unnest($1::text[], $2::int[]) as q (name, lease_seconds)
  ), state as materialized (
    select q.name, q.due is not null as due,
      case when q.due is null then (
        select extract(epoch from min(j.start_after) - now()) * 1000 from pgboss.job_common j
        where j.name = q.name and j.state < 'active' and not j.blocked) end as next_ms,
      (select extract(epoch from min(a.heartbeat_on) - now() + q.lease_seconds * interval '1 s') * 1000
        from pgboss.job_common a
        where a.name = q.name and a.state = 'active' and a.group_id is not null) as lease_ms
    from queue q
  )
  select name, due, coalesce(lease_ms <= 0, false) as expired, least(next_ms, lease_ms)::float8 as "nextMs"
  from state where due or next_ms is not null or lease_ms is not null`

const waitingStatement = prepared('waiting', waitingSql)

/** What waits in queues, with one statement for all of them; queues in which nothing does are left out. */
export async function readBacklog(
  db: SqlExecutor,
  queues: readonly Pick<Queue<any>, 'name' | 'leaseSeconds'>[],
): Promise<QueueBacklog[]> {
  const names = queues.map(({ name }) => name)
  const leases = queues.map(({ leaseSeconds }) => leaseSeconds)
  return (await db.executeSql(waitingStatement(), [names, leases])).rows
}
