import type { Executor, Queue } from './queue.ts'

/**
 * The statements on pg-boss's table that its public face lacks. Completing, dead-lettering and heartbeats are pg-boss's
 * own. They name the columns and indexes of pg-boss 12.35 (schema 37); test/core/queue.test.ts fails when they change.
 */

/** A message as claimed. `retryCount` names the attempt: what settles it is guarded by the pair. */
export type Claim = {
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

// pg-boss's fetch of a stately queue answers nothing at all while the oldest waiting message's key is active: activating
// it violates job_i3. So a key that is active is skipped here, and of a key that waits twice, once fresh and once for its
// retry, only the fresh one is taken. job_i11 serves the order. The array keeps PostgreSQL from joining the whole table
// when its statistics are stale.
const claimSql = (stately: boolean) => `
  with next as (
    select j.id
    from pgboss.job_common j
    where j.name = $1 and j.state < 'active' and not j.blocked and j.start_after <= now()
      and (j.group_id is null or j.group_id <> all ($3::text[]))
      ${stately ? `and ${none('active')} and (j.state <> 'retry' or ${none('created')})` : ''}
    order by j.priority desc, j.created_on
    limit $2
    for update skip locked
  )
  update pgboss.job_common j
  set state = 'active', started_on = now(), heartbeat_on = now(),
    retry_count = case when j.started_on is null then j.retry_count else j.retry_count + 1 end
  where j.name = $1 and j.id = any (array(select id from next))
  returning ${columns}`

const claimStandard = claimSql(false)
const claimStately = claimSql(true)

/**
 * Claims up to `limit` due messages, oldest first, leaving out those of the projects in `without`. Answers null when
 * another worker won the same key: claim again.
 */
export async function claim(
  db: Executor,
  queue: Queue<any>,
  limit: number,
  without: string[],
): Promise<Claim[] | null> {
  try {
    const text = queue.policy === 'stately' ? claimStately : claimStandard
    return (await db.executeSql(text, [queue.name, limit, without])).rows
  } catch (error) {
    if ((error as { code?: string }).code === UNIQUE_VIOLATION) return null
    throw error
  }
}

const UNIQUE_VIOLATION = '23505'

/**
 * Has an attempt tried again in `delayMs`. `error` is stored with the message. Answers `kept` when the message waits for
 * its retry, `merged` when another retry of the same key waits already, `lost` when the attempt was no longer ours.
 */
export async function retry(
  db: Executor,
  queue: Queue<any>,
  attempt: { id: string; retryCount: number },
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
  with back as (
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
      and me.state = 'active' and j.state = 'active' and (j.id::text || ':' || j.retry_count) = any ($2::text[])
    returning j.id
  )
  select back.id, pg_notify($5, $1) from back`

/**
 * Gives claimed messages back, available again in `delayMs`, the attempt not counted; wakes workers. Answers the ids
 * given back: the others were no longer ours.
 */
export async function handBack(
  db: Executor,
  queue: Queue<any>,
  attempts: { id: string; retryCount: number }[],
  delayMs: number,
  channel: string,
): Promise<string[]> {
  const pairs = attempts.map(({ id, retryCount }) => `${id}:${retryCount}`)
  const ids = attempts.map(({ id }) => id)
  for (let tries = 0; ; tries++) {
    try {
      const { rows } = await db.executeSql(handBackSql, [queue.name, pairs, delayMs, ids, channel])
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
export async function expired(db: Executor, queue: Queue<any>): Promise<Claim[]> {
  return (await db.executeSql(expiredSql, [queue.name, queue.leaseSeconds])).rows
}
