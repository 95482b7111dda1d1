import { settledWithin } from '../base/event-loop.ts'
import { formatVersionIn } from '../base/format-versions.ts'
import { HOLDER } from '../base/holder.ts'
import { loopsRestarted } from '../base/metrics.ts'
import { databaseErrorKind } from '../db/database-errors.ts'
import type { SqlExecutor } from '../db/pool.ts'
import { type Fragment, fragmentText, rawFragment, sql } from '../db/sql.ts'
import { namedStatement, type Queue } from '../queues/queue.ts'
import {
  ACCOUNTS,
  ALONE,
  hasTimeLeft,
  joinAccount,
  LOSSES,
  leastDebt,
  SHARE,
  withoutLosses,
} from '../queues/suspects.ts'

/**
 * Statements on pg-boss's table that its API lacks or does not prepare; dead-lettering and heartbeats use its API. They
 * depend on the columns and indexes of pg-boss 12.35 (schema 37); test/core/queue.test.ts fails when they change.
 */

/** A claimed message. `id` and `retryCount` identify the attempt and are the fence of its outcome. */
export type MessageClaim = {
  id: string
  data: object
  retryCount: number
  retryLimit: number
  key: string | null
  project: string | null
  /** What the claim has read with the message (`preload` of the handler); null for none. */
  preloaded?: string | null
}

const columns = `j.id, j.data, j.retry_count as "retryCount", j.retry_limit as "retryLimit", j.singleton_key as "key",
  j.group_id as "project"`

// A scalar subquery is one lookup in job_i3 per candidate. PostgreSQL turns `not exists` into a join, which on a table
// without statistics reads every waiting message: 35 ms for 10 messages out of 10,000 instead of 0.9.
const hasNoOther = (state: 'active' | 'created') => `(
        select 1 from pgboss.job_common other
        where other.name = j.name and other.policy = 'stately' and other.state = '${state}'
          and coalesce(other.singleton_key, '') = coalesce(j.singleton_key, '') limit 1) is null`

// A suspect (quarantine.ts) is blocked. The wake-ups of its key wait for it: they would run the same work. One lookup in
// muster_suspects per statement; with suspects, one in job_i3 or its kind for `retry`, their state, per candidate.
const hasNoSuspect = `((
        select 1 from pgboss.job_common suspect
        where suspect.name = $1 and suspect.blocked and suspect.state < 'active' limit 1) is null or (
        select 1 from pgboss.job_common other
        where other.name = j.name and other.policy = 'stately' and other.state = 'retry' and other.blocked
          and coalesce(other.singleton_key, '') = coalesce(j.singleton_key, '') limit 1) is null)`

// pg-boss's fetch of a stately queue returns nothing while the key of the oldest waiting message is active: activating
// it would violate job_i3. So active keys are skipped here, and if a key has a new message and a retry, only the new
// one is claimed.
const isClaimable = (policy: Queue<any>['policy']) => `
      j.name = $1 and j.state < 'active' and not j.blocked and j.start_after <= now()
      ${policy === 'stately' ? `and ${hasNoOther('active')} and ${hasNoSuspect} and (j.state <> 'retry' or ${hasNoOther('created')})` : ''}`

// group_tier, which pg-boss's own fetch would use, stores the process that holds the message. The array keeps
// PostgreSQL from joining the whole table when its statistics are stale.
const activate = `
  update pgboss.job_common j
  set state = 'active', started_on = now(), heartbeat_on = now(),
    retry_count = case when j.started_on is null then j.retry_count else j.retry_count + 1 end, group_tier = '${HOLDER}'
  where j.name = $1 and j.id = any (array(select id from next))
  returning ${columns}`

// job_i11 serves the order.
const oldestFirst = (policy: Queue<any>['policy']) => `
  with next as (
    select j.id from pgboss.job_common j where ${isClaimable(policy)}
    order by j.priority desc, j.created_on
    limit $2
    for update skip locked
  )
  ${activate}`

/** Bytes of what a claim reads with one message: the answer has all its messages, of several projects. */
const MAX_PRELOAD_BYTES = 64 * 1024

// Materialized, because PostgreSQL would otherwise build the text once for its length and once for the answer.
const preloadOf = (preload: string) => `left join lateral (
    with r (value) as materialized (${preload})
    select case when octet_length(value) <= ${MAX_PRELOAD_BYTES} then value end as preloaded from r
  ) r on true`

/**
 * Most projects below their share that one claim considers; with more waiting projects, the ring serves all in turn.
 */
const MAX_PROJECTS = 32

// Whether a due message was not claimed, for example because its key is active.
const hasMoreDue = `exists (
        select from pgboss.job_common j
        where j.name = $1 and j.state < 'active' and not j.blocked and j.start_after <= now()
          and j.id <> all (array(select id from next)))`

// `ring` iterates over the projects with claimable messages, starting after $3, the project served last, and wrapping
// around: one lookup per project in muster_waiting (queue.ts), regardless of its backlog. `turn` adds the number of
// active messages per project in the deployment, counted in job_i7. `candidate` selects up to the limit of messages per
// project, or one each if there are enough projects. Each slot goes to the project that will then hold the fewest, and
// between equals to the next in the ring; by age, a project with a long backlog would always be served first on an idle
// worker. Beyond its share of this process ($5 slots; $4 maps projects to slots held here) a project comes after all
// others, and only into the first $6 slots. Rows that another worker is claiming are skipped.
//
// A claim takes 0.2 ms when nothing waits, 0.5 ms with 10,000 messages of one project, 1 ms with 20 projects and 1.5 ms
// with 1,000. It is prepared, because planning it takes 2 ms.
const inTurn = (policy: Queue<any>['policy'], preload?: string) => `
  with recursive ring (project, place, below_share, round) as (
    select $3::text, 0, 0, $3 = ''
    union all
    select step.project, r.place + 1, r.below_share + (coalesce(($4::jsonb ->> step.project)::int, 0) < $5)::int, step.round
    from ring r
    cross join lateral (
      (select j.group_id as project, r.round from pgboss.job_common j
        where ${isClaimable(policy)} and j.group_id > r.project order by j.group_id limit 1)
      union all
      (select j.group_id, true from pgboss.job_common j
        where not r.round and ${isClaimable(policy)} and j.group_id > '' order by j.group_id limit 1)
      limit 1
    ) step
    where r.below_share < ${MAX_PROJECTS} and ($3 = '' or not step.round or step.project <= $3)
  ), turn as materialized (
    select project, place, coalesce(($4::jsonb ->> project)::int, 0) as here, (
      select count(*) from pgboss.job_common a
      where a.name = $1 and a.state = 'active' and a.group_id = ring.project) as held
    from ring where place > 0
  ), candidate as (
    select m.id, t.project, t.here + m.nth > $5 as beyond_share,
      row_number() over (order by t.here + m.nth > $5, t.held + m.nth, t.place) as position
    from turn t
    cross join lateral (
      select j.id, row_number() over (order by j.group_id, j.priority desc, j.created_on) as nth
      from pgboss.job_common j
      where ${isClaimable(policy)} and j.group_id between t.project and t.project
      order by j.group_id, j.priority desc, j.created_on
      limit case when (select count(*) from turn) < $2 then $2 else 1 end
    ) m
  ), eligible as materialized (
    select * from candidate where not beyond_share or position <= $6
  ), next as materialized (
    select m.id, f.project, f.position
    from (select * from eligible order by position) f
    cross join lateral (
      select j.id from pgboss.job_common j
      where j.name = $1 and j.id = f.id and j.state < 'active'
      for update skip locked
    ) m
    limit $2
  ), claimed as (${activate})
  select state.*, claimed.* ${preload ? ', r.preloaded' : ''} from (
    select (select count(*)::int from eligible) as found,
      (select project from next order by position desc limit 1) as last,
      ${policy === 'stately' ? hasMoreDue : 'false'} as "othersWait"
  ) state left join claimed on true ${preload ? preloadOf(preload) : ''}`

/**
 * Time after which the answer of a claim is ignored and its connection ended. A claim takes milliseconds, so its answer
 * was lost; its messages are returned after UNHELD_MS.
 */
export const CLAIM_MS = 6000

/** Age of a claim from which its messages are returned if the process that claimed them does not have them. */
const UNHELD_MS = CLAIM_MS + 1000

const claimStatement = (name: string, text: string) => namedStatement(name, text, { limitMs: CLAIM_MS })

const statements = {
  standard: {
    oldest: claimStatement('oldest', oldestFirst('standard')),
    turn: claimStatement('turn', inTurn('standard')),
  },
  stately: {
    oldest: claimStatement('oldest_stately', oldestFirst('stately')),
    turn: claimStatement('turn_stately', inTurn('stately')),
  },
}

const preloadingStatements = new Map<string, ReturnType<typeof claimStatement>>()

/** Returns the claim of a queue with projects, with what its handler preloads. */
function turnStatement({ name, policy }: Queue<any>, preload: Fragment | undefined) {
  if (!preload) return statements[policy].turn
  const existing = preloadingStatements.get(name)
  if (existing) return existing
  const statement = claimStatement(`turn ${name}`, inTurn(policy, fragmentText(preload)))
  preloadingStatements.set(name, statement)
  return statement
}

/** Limits of one claim. All but `limit` apply to queues whose messages have projects. */
export type MessageClaimRequest = {
  limit: number
  /** Project served last; the next one has its turn. */
  last: string
  /** Messages that each project holds in this process. */
  held: ReadonlyMap<string, number>
  /** Messages that one project may hold in this process while other projects wait. */
  share: number
  /** Number of claimed messages that may exceed the share of their project if no other project waits. */
  borrow: number
  /** Of the handler. */
  preload?: Fragment
}

/** `more`: the claim left other messages unclaimed. `othersWait`: some are due, possibly with active keys. */
export type ClaimedMessages = { jobs: MessageClaim[]; more: boolean; othersWait: boolean; last: string }

/**
 * Claims due messages. In queues without projects the oldest are claimed first. Otherwise slots go in turn to the
 * projects with the fewest active messages of the queue in the deployment, and within a project the oldest are claimed
 * first. In both cases a higher priority takes precedence.
 * @returns null if another worker claimed the same key concurrently: claim again
 * @throws Error without an answer within CLAIM_MS
 */
export async function claimMessages(
  db: SqlExecutor,
  queue: Queue<any>,
  request: MessageClaimRequest,
): Promise<ClaimedMessages | null> {
  return answeredInTime(queue.name, () => sendClaim(db, queue, request))
}

/** Returns the answer of a claim. @throws Error without an answer within CLAIM_MS */
async function answeredInTime<T>(name: string, send: () => Promise<T>): Promise<T> {
  const sentAt = performance.now()
  const claimed = await settledWithin(
    CLAIM_MS,
    send().then(answer => ({ answer })),
  )
  if (claimed && performance.now() - sentAt < CLAIM_MS) return claimed.answer
  loopsRestarted.inc({ loop: 'message claims' })
  throw new Error(`claim of ${name} not answered`)
}

async function sendClaim(
  db: SqlExecutor,
  queue: Queue<any>,
  request: MessageClaimRequest,
): Promise<ClaimedMessages | null> {
  const { limit, last, held, share, borrow, preload } = request
  try {
    if (!queue.project) {
      const { oldest } = statements[queue.policy]
      const jobs: MessageClaim[] = (await db.executeSql(oldest(), [queue.name, limit])).rows
      return { jobs, more: jobs.length === limit, othersWait: true, last }
    }
    const here = JSON.stringify(Object.fromEntries(held))
    const claim = turnStatement(queue, preload)
    const { rows } = await db.executeSql(claim(), [queue.name, limit, last, here, share, borrow])
    const [state] = rows
    const jobs: MessageClaim[] = rows.filter(row => row.id !== null)
    const more = jobs.length === limit || state.found > jobs.length
    return { jobs, more, othersWait: state.othersWait, last: state.last ?? last }
  } catch (error) {
    if ((error as { code?: string }).code === UNIQUE_VIOLATION) return null
    // A row that cannot be read must not keep other messages from being claimed.
    if (preload && databaseErrorKind(error) === 'fault') return sendClaim(db, queue, { ...request, preload: undefined })
    throw error
  }
}

const UNIQUE_VIOLATION = '23505'

/**
 * Whether a mailbox has a waiting or claimed message of a key; with `aliveWithinMs`, only if the message was due, claimed,
 * renewed or taken over within that time. Up to three lookups in job_i3.
 */
export function hasMessage(queue: string, key: Fragment, { aliveWithinMs }: { aliveWithinMs?: number } = {}): Fragment {
  const isAlive =
    aliveWithinMs === undefined
      ? sql.fragment``
      : sql.fragment`and greatest(j.start_after, j.started_on, j.heartbeat_on) > now() - ${aliveWithinMs} * interval '1 ms'`
  const inState = (state: string): Fragment => sql.fragment`(
    select 1 from pgboss.job_common j
    where j.name = ${queue} and j.policy = 'stately' and j.state = ${rawFragment(`'${state}'`)}
      and coalesce(j.singleton_key, '') = ${key} ${isAlive}
    limit 1) is not null`
  return sql.fragment`(${sql.join(['active', 'created', 'retry'].map(inState), sql.fragment` or `)})`
}

const unstoredStatement = namedStatement(
  'unstored',
  `select m.id from unnest($1::text[], $2::uuid[]) as m (name, id)
  where (select true from pgboss.job_common j where j.name = m.name and j.id = m.id limit 1) is null`,
)

/**
 * Returns the messages that are not stored yet, with one lookup in the primary key for each: a subselect with a limit does not become
 * a join over the table.
 */
export async function filterUnstored<M extends { queue: Queue<any>; id: string }>(
  db: SqlExecutor,
  messages: readonly M[],
): Promise<M[]> {
  const names = messages.map(({ queue }) => queue.name)
  const { rows } = await db.executeSql(unstoredStatement(), [names, messages.map(({ id }) => id)])
  const unstored = new Set(rows.map(row => row.id as string))
  return messages.filter(({ id }) => unstored.has(id))
}

/** An attempt at a message. */
type Attempt = Pick<MessageClaim, 'id' | 'retryCount'>

const attemptValues = (attempts: Attempt[]) => [
  attempts.map(({ id }) => id),
  attempts.map(({ id, retryCount }) => `${id}:${retryCount}`),
]

const isAttempt = (job: string, pairs: string) =>
  `(${job}.id::text || ':' || ${job}.retry_count) = any (${pairs}::text[])`

/** Identity of a claim: a requeued message keeps its number of retries. */
const claimKey = (job: string) =>
  `(${job}.id::text || ':' || ${job}.retry_count || ':' || extract(epoch from ${job}.started_on))`

// Equivalent to pg-boss's completion, but prepared: planning takes longer than execution.
const completeSql = `
  update pgboss.job_common j set state = 'completed', completed_on = now()
  where j.name = $1 and j.id = any ($2::uuid[]) and j.state = 'active' and ${isAttempt('j', '$3')}
  returning j.id`

const completeStatement = namedStatement('complete', completeSql)

/** Builds the completion of an attempt as a CTE. */
export const completionCte = (
  queue: Queue<any>,
  { id, retryCount }: Attempt,
  guard: Fragment,
): Fragment => sql.fragment`
  update pgboss.job_common set state = 'completed', completed_on = now()
  where name = ${queue.name} and id = ${id}::uuid and retry_count = ${retryCount} and state = 'active' and ${guard}`

/** Completes attempts. Returns their IDs, without lost claims. */
export async function completeMessages(db: SqlExecutor, queue: Queue<any>, attempts: Attempt[]): Promise<Set<string>> {
  const { rows } = await db.executeSql(completeStatement(), [queue.name, ...attemptValues(attempts)])
  return new Set(rows.map(row => row.id as string))
}

/** Whether a message was the only one in progress since its last claim. */
export const ranAlone = ({ data }: Pick<MessageClaim, 'data'>): boolean =>
  (data as Record<string, unknown>)[ALONE] === true

/** Records that other messages are in progress alongside a suspect. */
export async function endProbation(db: SqlExecutor, queue: string, { id, retryCount }: Attempt): Promise<void> {
  await db.executeSql(
    `update pgboss.job_common set data = data - '${ALONE}'
    where name = $1 and id = $2 and retry_count = $3 and state = 'active'`,
    [queue, id, retryCount],
  )
}

/** Number of lost workers after which work fails, if it was alone in the last one. */
export const MAX_WORKER_LOSSES = 2

/** The same for work whose handler bounds lost workers: above the limits of its rows, which end the work before. */
const MAX_BOUNDED_LOSSES = 3

/** Returns the number of lost workers after which the messages of a handler fail. */
export const maxLossesOf = ({ boundsLosses, maxLosses }: { boundsLosses?: boolean; maxLosses?: number }): number =>
  maxLosses ?? (boundsLosses ? MAX_BOUNDED_LOSSES : MAX_WORKER_LOSSES)

/** Returns the number of workers that were lost while a message was active. */
export const workerLosses = ({ data }: Pick<MessageClaim, 'data'>): number =>
  Number((data as Record<string, unknown>)[LOSSES] ?? 0)

/** Field of the data of a message: its last claim that was lost. */
export const LOST_CLAIM = 'lost_claim'

/** A claim that was lost: the process that had it, if known, and the end of its lease. */
export type LostClaim = { instance_id: string | null; lease_expires_at: string }

/** Returns the last lost claim of a message; null without one. */
export const lostClaimOf = ({ data }: Pick<MessageClaim, 'data'>): LostClaim | null =>
  (data as Record<string, LostClaim | undefined>)[LOST_CLAIM] ?? null

const lostClaimAt = (
  time: string,
) => `jsonb_build_object('${LOST_CLAIM}', jsonb_build_object('lease_expires_at', ${time},
    'instance_id', (select w.instance_id from worker_heartbeats w where w.holder = j.group_tier limit 1)))`

// Whether the lost claim in the data of a message is its present one: a later claim starts after the lease of an earlier one.
const hasLostClaim = `coalesce((j.data #>> '{${LOST_CLAIM},lease_expires_at}')::timestamptz > j.started_on, false)`

/** Assignment that counts a lost worker in the active messages of the alias `j`, whose leases end. */
export const countWorkerLoss: Fragment = rawFragment(
  `data = j.data || ${lostClaimAt('now()')} || jsonb_build_object('${LOSSES}', coalesce((j.data ->> '${LOSSES}')::int, 0) + 1)`,
)

// Whether a message is a suspect (quarantine.ts), which no other claim takes, and pg-boss's indexes omit.
const isSuspect = (job: string) => `${job}.data ? '${LOSSES}'`

// $1: versions of the queues of this process, by name. Suspects in later versions are left to other workers.
const dueSuspects = `
  from pgboss.job_common j ${joinAccount('j.group_id')}
  where j.name = any (array(select jsonb_object_keys($1::jsonb))) and ${formatVersionIn('j.data')} <= ($1::jsonb ->> j.name)::int and j.blocked and j.state < 'active' and j.start_after <= now() and ${hasTimeLeft}
    and (j.policy <> 'stately' or ${hasNoOther('active')})
  order by (j.data ->> '${LOSSES}')::int, ${leastDebt}, j.created_on
  limit 1`

/** Versions of queues by name. */
export type QueueVersions = Readonly<Record<string, number>>

/** Returns the queue and the lost workers of the next suspect that is due, null without one. */
export async function findSuspect(
  db: SqlExecutor,
  versions: QueueVersions,
): Promise<{ queue: string; losses: number } | null> {
  const { rows } = await db.executeSql(
    `select j.name as queue, coalesce((j.data ->> '${LOSSES}')::int, 0) as losses ${dueSuspects}`,
    [JSON.stringify(versions)],
  )
  return rows[0] ?? null
}

const suspectStatement = claimStatement(
  'suspect',
  `with next as (select j.name, j.id ${dueSuspects} for update of j skip locked)
  update pgboss.job_common j
  set state = 'active', blocked = false, started_on = now(), heartbeat_on = now(),
    retry_count = case when j.started_on is null then j.retry_count else j.retry_count + 1 end,
    data = j.data || jsonb_build_object('${ALONE}', $2::boolean), group_tier = '${HOLDER}'
  from next n where j.name = n.name and j.id = n.id
  returning ${columns}, j.name as queue`,
)

/**
 * Claims the next suspect of the queues that is due. Returns null without one, or if another worker claims it.
 * @throws Error without an answer within CLAIM_MS
 */
export async function claimSuspect(
  db: SqlExecutor,
  versions: QueueVersions,
  { alone }: { alone: boolean },
): Promise<(MessageClaim & { queue: string }) | null> {
  try {
    const { rows } = await answeredInTime('a suspect', () =>
      db.executeSql(suspectStatement(), [JSON.stringify(versions), alone]),
    )
    return rows[0] ?? null
  } catch (error) {
    if ((error as { code?: string }).code === UNIQUE_VIOLATION) return null
    throw error
  }
}

/**
 * Charges a project for the time for which its suspects paused one of `workers` workers; a negative one is returned. Deletes
 * accounts that are paid.
 */
export async function chargeSuspectTime(db: SqlExecutor, project: string, ms: number, workers: number): Promise<void> {
  await db.executeSql(
    `with paid as (
      delete from ${ACCOUNTS} where project_id in (
        select project_id from ${ACCOUNTS} where paid_at < now() and project_id <> $1 for update skip locked))
    insert into ${ACCOUNTS} as a (project_id, paid_at) values ($1, now() + $2 * interval '1 ms')
    on conflict (project_id) do update set paid_at = greatest(a.paid_at, now()) + $2 * interval '1 ms'`,
    [project, ms / SHARE / workers],
  )
}

/** Moves the waiting retry of the same key, with which a lost message was merged, into quarantine. */
export async function blockRetryOf(db: SqlExecutor, queue: Queue<any>, { key, data }: MessageClaim): Promise<void> {
  await db.executeSql(
    `update pgboss.job_common j set blocked = true, data = j.data || jsonb_build_object('${LOSSES}', $3::int)
    where j.name = $1 and j.policy = 'stately' and j.state = 'retry' and coalesce(j.singleton_key, '') = coalesce($2, '')`,
    [queue.name, key, workerLosses({ data })],
  )
}

/**
 * Schedules the retry of a message in `delayMs` and stores `error` with it. `lost`: whether its lease has expired, so that it
 * may be a suspect; a message that failed did not end its worker, and is none. Returns `kept` if the message waits for its
 * retry, `merged` if another retry of the same key already waits, `lost` if the claim is lost.
 */
export async function scheduleRetry(
  db: SqlExecutor,
  queue: Queue<any>,
  attempt: Attempt,
  delayMs: number,
  { error, lost = false }: { error: object; lost?: boolean },
): Promise<'kept' | 'merged' | 'lost'> {
  const fence = `name = $1 and id = $2 and retry_count = $3 and state = 'active'`
  const values = [queue.name, attempt.id, attempt.retryCount]
  try {
    const { rows } = await db.executeSql(
      `update pgboss.job_common
       set state = 'retry', start_after = now() + $4 * interval '1 ms', heartbeat_on = null, output = $5::jsonb,
         ${lost ? `blocked = ${isSuspect('job_common')}` : `blocked = false, data = ${withoutLosses('data')}`}
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

// Without `started_on` the next claim does not count the attempt. If the key already has a waiting message, this one is
// completed. A suspect in its probation remains one, unless its handler has ended: a message that is requeued repeatedly, for
// example because its project is at a limit, would otherwise pause a worker each time. It keeps its count, for it may not
// have done the work.
const requeueSql = (
  isFenced: string,
  { hasEnded = 'false', delayMs = '$3', data = 'j.data' }: { hasEnded?: string; delayMs?: string; data?: string } = {},
) => `
  update pgboss.job_common j
  set state = (case when w.waits then 'completed' else 'created' end)::pgboss.job_state,
    completed_on = case when w.waits then now() end,
    started_on = null, heartbeat_on = null, start_after = now() + ${delayMs} * interval '1 ms',
    blocked = j.data ? '${ALONE}' and not ${hasEnded},
    data = case when ${hasEnded} then ${data} - '${ALONE}' else ${data} end
  from pgboss.job_common me
  cross join lateral (select me.policy = 'stately' and exists (
    select from pgboss.job_common other
    where other.name = $1 and other.policy = 'stately' and other.state = 'created'
      and coalesce(other.singleton_key, '') = coalesce(me.singleton_key, '')) as waits) w
  where me.name = $1 and j.name = $1 and j.id = me.id and me.id = any ($4::uuid[])
    and me.state = 'active' and j.state = 'active' and ${isFenced}
  returning j.id`

const requeueAttempts = requeueSql(isAttempt('j', '$2'), { hasEnded: '$5::boolean' })

/** Field of the data of a message: how often workers have left it to a worker of a later release. */
const LEFT = 'left_to_later_release'

const leftCount = `coalesce((j.data ->> '${LEFT}')::int, 0)`

/** Delay of a message that is left to a later release: at first $3, doubled each time. */
const MAX_LEFT_MS = 10_000

const leaveAttempts = `${requeueSql(isAttempt('j', '$2'), {
  hasEnded: '$5::boolean',
  delayMs: `least($3 * 2 ^ least(${leftCount}, 20), ${MAX_LEFT_MS})`,
  data: `(j.data || jsonb_build_object('${LEFT}', ${leftCount} + 1))`,
})}, (j.data ->> '${LEFT}')::int as count`

// Another claim of the message has another time.
const requeueClaims = requeueSql(`${claimKey('j')} = any ($2::text[])`)

/**
 * Requeues claimed messages in `delayMs` without counting the attempt. Returns the IDs of the requeued messages,
 * without lost claims; the caller wakes workers for them. `ended`: whether their handler has ended while the process continues.
 */
export async function requeueMessages(
  db: SqlExecutor,
  queue: Queue<any>,
  attempts: Attempt[],
  delayMs: number,
  { ended = false }: { ended?: boolean } = {},
): Promise<string[]> {
  const [ids, pairs] = attemptValues(attempts)
  return requeue(db, requeueAttempts, [queue.name, pairs, delayMs, ids, ended])
}

/** Delay of a message that is left for the first time. */
const LEAVE_MS = 1000

/**
 * Requeues claimed messages for workers of a later release, without counting the attempt, and with a delay that grows each
 * time. Returns the IDs of the requeued messages, and how often each has been left; lost claims are omitted. The caller wakes
 * workers.
 */
export async function leaveMessages(
  db: SqlExecutor,
  queue: Queue<any>,
  attempts: Attempt[],
  { ended }: { ended: boolean },
): Promise<ReadonlyMap<string, number>> {
  const [ids, pairs] = attemptValues(attempts)
  const rows = await requeueRows(db, leaveAttempts, [queue.name, pairs, LEAVE_MS, ids, ended])
  return new Map(rows.map(({ id, count }) => [id, count]))
}

const requeue = async (db: SqlExecutor, text: string, values: unknown[]): Promise<string[]> =>
  (await requeueRows(db, text, values)).map(({ id }) => id)

async function requeueRows(db: SqlExecutor, text: string, values: unknown[]): Promise<{ id: string; count: number }[]> {
  for (let tries = 0; ; tries++) {
    try {
      return (await db.executeSql(text, values)).rows
    } catch (error) {
      // A new message of the key was inserted concurrently; the next try sees it.
      if ((error as { code?: string }).code !== UNIQUE_VIOLATION || tries === 3) throw error
    }
  }
}

// job_i7 (name, group_id; active) serves it.
const unheldSql = `
  select j.id, ${claimKey('j')} as claim from pgboss.job_common j
  where j.name = $1 and j.state = 'active' and j.group_id is not null and j.group_tier = '${HOLDER}'
    and j.started_on < now() - ${UNHELD_MS} * interval '1 ms' and j.heartbeat_on > now() - $2 * interval '1 s'`

/**
 * Requeues the messages that this process claimed and does not have, because the answer of the claim was lost, without
 * counting the attempt. No claim that this process still waits for is old enough. Returns their IDs.
 * @param isHeld called after the list was read
 */
export async function requeueUnheld(
  db: SqlExecutor,
  queue: Queue<any>,
  isHeld: (id: string) => boolean,
): Promise<string[]> {
  const { rows } = await db.executeSql(unheldSql, [queue.name, queue.leaseSeconds])
  const unheld = rows.filter(({ id }) => !isHeld(id))
  if (unheld.length === 0) return []
  return requeue(db, requeueClaims, [queue.name, unheld.map(({ claim }) => claim), 0, unheld.map(({ id }) => id)])
}

// job_i7 (name, group_id; active) serves it, which the order ensures; every message has a group. The renewed heartbeat
// gives this process another lease to settle the message. `epoch`: the lease was ended with its worker. A message that this
// process may not settle is taken over again, in the claim that was lost first.
const expiredSql = `
  update pgboss.job_common j set heartbeat_on = now(),
    data = case when j.heartbeat_on > 'epoch' and not ${hasLostClaim} then j.data || ${lostClaimAt(`j.heartbeat_on + $2 * interval '1 s'`)} else j.data end
  where j.name = $1 and j.state = 'active' and j.id = any (array(
    select e.id from pgboss.job_common e
    where e.name = $1 and e.state = 'active' and e.group_id is not null
      and e.heartbeat_on < now() - $2 * interval '1 s'
    order by e.name, e.group_id limit 100 for update skip locked))
  returning ${columns}`

/** Takes over messages whose lease has expired. */
export async function takeOverExpired(db: SqlExecutor, queue: Queue<any>): Promise<MessageClaim[]> {
  return (await db.executeSql(expiredSql, [queue.name, queue.leaseSeconds])).rows
}

/**
 * State of a queue: whether messages are `due`, whether leases have `expired`, and whether this process claimed messages
 * that it does not have (`unheld`); `nextMs` is the time until the next message is in one of these states.
 */
export type QueueBacklog = {
  name: string
  due: boolean
  expired: boolean
  suspects: boolean
  unheld: boolean
  nextMs: number | null
}

// job_i11 (name, priority, created_on, start_after; waiting) serves `due`, which stops at the first due message, and
// `next_ms`, which reads all delayed messages; job_i7 (name, group_id; active) serves the leases. `limit` and
// `materialized` keep PostgreSQL from reading all due messages, four times. It takes 0.3 ms for all queues of a worker,
// 24 ms more with 100,000 delayed messages.
const backlogSql = `
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
      extract(epoch from active.beat_on - now() + q.lease_seconds * interval '1 s') * 1000 as lease_ms,
      extract(epoch from active.unheld_on - now()) * 1000 + ${UNHELD_MS} as unheld_ms,
      (select true from pgboss.job_common s
        where s.name = q.name and s.blocked and s.state < 'active' limit 1) as suspects
    from queue q
    cross join lateral (
      select min(a.heartbeat_on) as beat_on,
        min(a.started_on) filter (where a.group_tier = '${HOLDER}' and a.id <> all ($3::uuid[])) as unheld_on
      from pgboss.job_common a
      where a.name = q.name and a.state = 'active' and a.group_id is not null
    ) active
  )
  select name, due, coalesce(lease_ms <= 0, false) as expired, coalesce(suspects, false) as suspects,
    coalesce(unheld_ms <= 0, false) as unheld, least(next_ms, lease_ms, unheld_ms)::float8 as "nextMs"
  from state where due or suspects or next_ms is not null or lease_ms is not null`

const backlogStatement = namedStatement('waiting', backlogSql)

/**
 * Reads the state of queues with one statement. Queues without messages are omitted.
 * @param held IDs of the messages that this process has
 */
export async function readBacklog(
  db: SqlExecutor,
  queues: readonly Pick<Queue<any>, 'name' | 'leaseSeconds'>[],
  held: readonly string[],
): Promise<QueueBacklog[]> {
  const names = queues.map(({ name }) => name)
  const leases = queues.map(({ leaseSeconds }) => leaseSeconds)
  return (await db.executeSql(backlogStatement(), [names, leases, held])).rows
}
