import { z } from 'zod'
import { AppError } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { batchByKey } from '#core/db/batcher.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { currentTenant } from '#core/db/tenant-context.ts'
import type { EndUser, EndUserLimits } from '#core/iam/caller.ts'
import type { EndUserSpend } from '#core/invoke/hooks.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'

/** Limits of end users, counted by actor in fixed windows, exactly over all processes. */

/** Counted limits with the length of their windows in seconds. */
const WINDOWS = { requests_per_minute: 60, messages_per_hour: 3600, upload_bytes_per_day: 86_400 } as const

/** Default limits of a token, and the factor by which a token may exceed them. */
export const DEFAULT_LIMITS: EndUserLimits = {
  requests_per_minute: 120,
  messages_per_hour: 120,
  open_sessions: 20,
  streams: 4,
  message_chars: 8000,
  upload_bytes_per_day: 50 * 1024 * 1024,
}
export const MAX_LIMIT_FACTOR = 100

type Spend = { name: string; amount: number; max: number; seconds: number }

const spentRow = sql.type(z.object({ spent: z.int() }))
const subjectRow = sql.type(z.object({ subject: z.string() }))
const windowRow = sql.type(z.object({ resets_at: z.string(), seconds: z.number() }))

/** Returns the ctes that count spends, each only if the one before it was within its limit. */
const spendCtes = (subject: string, spends: readonly Spend[]): Fragment[] =>
  spends.map(({ name, amount, max, seconds }, index) => {
    const ends = sql.fragment`now() + make_interval(secs => ${seconds})`
    const before = index === 0 ? sql.fragment`` : sql.fragment`from ${sql.identifier([`spend_${index - 1}`])}`
    return sql.fragment`${sql.identifier([`spend_${index}`])} as (
      insert into actor_limits as t (subject, name, used, resets_at)
      select ${subject}, ${name}, ${amount}::bigint, ${ends} ${before}
      on conflict (subject, name) do update set
        used = case when t.resets_at <= now() then excluded.used else t.used + excluded.used end,
        resets_at = case when t.resets_at <= now() then excluded.resets_at else t.resets_at end
      where t.resets_at <= now() or t.used + excluded.used <= ${max}::bigint
      returning 1)`
  })

/**
 * Counts amounts against limits of a subject in one statement, in order until one is exceeded, which counts nothing. Returns
 * the exceeded limit, or null. Primary key.
 */
async function spend(db: Queryable, subject: string, spends: readonly Spend[]): Promise<Spend | null> {
  const excessive = spends.find(({ amount, max }) => amount > max)
  if (excessive) return excessive
  const sums = spends.map((_each, index) => sql.fragment`(select count(*) from ${sql.identifier([`spend_${index}`])})`)
  const spent = await db.oneFirst(spentRow`
    with ${sql.join(spendCtes(subject, spends), sql.fragment`, `)}
    select (${sql.join(sums, sql.fragment` + `)})::int as spent`)
  return spends[spent] ?? null
}

/** Returns ACTOR_LIMIT_EXCEEDED, with the time until the window ends. */
async function limitExceeded(db: Queryable, actorId: string | null, subject: string, { name, max }: Spend) {
  const window = await db.maybeOne(windowRow`
    select resets_at, greatest(1, ceil(extract(epoch from resets_at - now())))::float8 as seconds
    from actor_limits where subject = ${subject} and name = ${name}`)
  return limitError(actorId, name, max, window)
}

const limitError = (
  actor_id: string | null,
  limit: string,
  max: number,
  window: { resets_at: string; seconds: number } | null,
): AppError =>
  new AppError('ACTOR_LIMIT_EXCEEDED', {
    meta: { actor_id, limit, max, resets_at: window?.resets_at ?? null },
    headers: window ? { 'Retry-After': String(window.seconds) } : {},
  })

/** Raises ACTOR_LIMIT_EXCEEDED for a limit without a window. */
export function raiseLimit({ actor_id, limits }: EndUser, name: keyof EndUserLimits): never {
  throw limitError(actor_id, name, limits[name], null)
}

/**
 * Counts requests of end users of a project, each with the same maximum, in one statement. Returns the end users all of whose
 * requests are within it; requests of the others are not counted. Primary key.
 */
async function spendTogether(
  db: Queryable,
  amounts: ReadonlyMap<string, number>,
  { name, max, seconds }: Omit<Spend, 'amount'>,
): Promise<Set<string>> {
  const fitting = [...amounts].filter(([, amount]) => amount <= max)
  const counted = await db.anyFirst(subjectRow`
    insert into actor_limits as t (subject, name, used, resets_at)
    select s.subject, ${name}, s.amount, now() + make_interval(secs => ${seconds})
    from ${sql.unnest(fitting, ['text', 'int8'])} as s (subject, amount)
    order by s.subject
    on conflict (subject, name) do update set
      used = case when t.resets_at <= now() then excluded.used else t.used + excluded.used end,
      resets_at = case when t.resets_at <= now() then excluded.resets_at else t.resets_at end
    where t.resets_at <= now() or t.used + excluded.used <= ${max}::bigint
    returning subject`)
  return new Set(counted)
}

/** Counts requests of concurrent calls in one statement: one for each would cost as much as the rest of a read. */
const requestCounts = processSingleton(({ pool }: Services) => {
  const count = batchByKey<string, EndUser, boolean>(async (_key, calls) => {
    const amounts = new Map<string, number>()
    for (const { actor_id } of calls) amounts.set(actor_id, (amounts.get(actor_id) ?? 0) + 1)
    const counted = await spendTogether(pool, amounts, spendOf(calls[0], 'requests_per_minute', 1))
    return calls.map(({ actor_id }) => counted.has(actor_id))
  })
  return (endUser: EndUser): Promise<boolean> =>
    count(`${currentTenant()?.tenant} ${endUser.limits.requests_per_minute}`, endUser)
})

async function spendOrRaise(db: Queryable, endUser: EndUser, spends: readonly Spend[]): Promise<void> {
  const exceeded = await spend(db, endUser.actor_id, spends)
  if (exceeded) throw await limitExceeded(db, endUser.actor_id, endUser.actor_id, exceeded)
}

const spendOf = ({ limits }: EndUser, name: keyof typeof WINDOWS, amount: number): Spend => ({
  name,
  amount,
  max: limits[name],
  seconds: WINDOWS[name],
})

/** Counts a call of an end user. Raises ACTOR_LIMIT_EXCEEDED. */
export async function countCall(
  services: Services,
  endUser: EndUser,
  { messages = 0, chars = 0 }: EndUserSpend,
): Promise<void> {
  // Requests that do not fit together are counted one by one.
  if (messages === 0 && chars === 0 && (await requestCounts(services)(endUser))) return
  const { pool } = services
  const isTooLong = chars > endUser.limits.message_chars
  await spendOrRaise(pool, endUser, [
    spendOf(endUser, 'requests_per_minute', 1),
    ...(messages > 0 && !isTooLong ? [spendOf(endUser, 'messages_per_hour', messages)] : []),
  ])
  if (isTooLong) raiseLimit(endUser, 'message_chars')
}

/** Counts uploaded bytes of an end user. Raises ACTOR_LIMIT_EXCEEDED. */
export const countUpload = ({ pool }: Pick<Services, 'pool'>, endUser: EndUser, bytes: number): Promise<void> =>
  spendOrRaise(pool, endUser, [spendOf(endUser, 'upload_bytes_per_day', bytes)])

/** Counts an actor created by a key on behalf of its front end. Raises ACTOR_LIMIT_EXCEEDED. */
export async function countCreatedActor(db: Queryable, keyId: string, max: number): Promise<void> {
  const created = { name: 'actors_created_per_hour', amount: 1, max, seconds: 3600 }
  if (await spend(db, keyId, [created])) throw await limitExceeded(db, null, keyId, created)
}

/** Deletes counters of windows that ended, in batches; returns their number. By actor_limits_resets. */
export const pruneLimits = ({ pool }: Pick<Services, 'pool'>, stopping: AbortSignal | undefined): Promise<number> =>
  deleteInBatches(async limit => {
    const { rowCount } = await pool.query(voidStatement`
      delete from actor_limits where ctid = any (array(
        select ctid from actor_limits where resets_at < now() - interval '1 hour' order by resets_at limit ${limit}))`)
    return rowCount
  }, stopping)
