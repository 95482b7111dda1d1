import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { idFloor } from '../base/ids.ts'
import type { Services } from '../base/services.ts'
import { isLockFailure } from './database-errors.ts'
import { withStatementLimit } from './pg-client.ts'
import { inTransaction, type Pool, type Transaction } from './pool.ts'
import { type Fragment, type Queryable, rawFragment, sql, voidStatement } from './sql.ts'
import { setForTransaction } from './transaction-settings.ts'

/** A table that is partitioned by months of its IDs, with their prefix (sql/0037_months.sql). */
export type MonthlyTable = {
  table: string
  prefix: string
  /**
   * Does what deletes of the rows of a partition would do, while other work reads and writes the table; false keeps the partition,
   * whose rows are then deleted one by one.
   */
  expire(tx: Transaction, partition: Fragment): Promise<boolean>
  /** Is called after `expire` for what has changed since, under a lock that excludes all other work. */
  expireChanges?(tx: Transaction, partition: Fragment, since: Date): Promise<void>
}

/** Months for which partitions exist ahead of the current one. */
const AHEAD = 3

/** Longest wait for the lock under which a partition is dropped: work that needs the table waits with it. */
const LOCK_WAIT_MS = 500
const VACUUM_WAIT_MS = 5000
const PAUSE_MS = 1000
const ATTEMPTS = 30

const replicatedRow = sql.type(z.object({ replicated: z.boolean() }))
const madeRow = sql.type(z.object({ made: z.int() }))
const lockedRow = sql.type(z.object({ locked: z.boolean() }))
const nameRow = sql.type(z.object({ name: z.string() }))
const scopeRow = sql.type(z.object({ scope: z.string(), count: z.int() }))

/** The upper bound in the definition of a partition. */
const UPPER_BOUND = " TO \\('([^']+)'\\)"

/** Key of the advisory lock of work on past months. */
const PAST_MONTHS = rawFragment(`hashtextextended('muster months ' || current_schema(), 0)`)

/** Statement with which a transaction that adds or deletes rows of past months keeps them from being dropped until it ends. */
export const LOCK_PAST_MONTHS = `select from pg_advisory_xact_lock_shared(${PAST_MONTHS.sql})`

/** Executes LOCK_PAST_MONTHS. */
export const lockPastMonths = (tx: Transaction): Promise<unknown> =>
  tx.query(voidStatement`${rawFragment(LOCK_PAST_MONTHS)}`)

/** Returns the start of the month of a time in UTC, or of a later one. */
export const firstOfMonth = (time: Date, offset = 0): Date =>
  new Date(Date.UTC(time.getUTCFullYear(), time.getUTCMonth() + offset))

const DAY_MS = 86_400_000

/** Returns the time before which rows expire; with RETENTION_GRANULARITY `month` the start of its month. */
export function expiresBefore({ config, clock }: Pick<Services, 'config' | 'clock'>, days: number): Date {
  const time = new Date(clock.now().getTime() - days * DAY_MS)
  return config.RETENTION_GRANULARITY === 'month' ? firstOfMonth(time) : time
}

/** Makes the partitions of this month and of those ahead. Returns their number. */
const makeMonths = (pool: Pool, { table, prefix }: MonthlyTable, now: Date): Promise<number> =>
  inLongTransaction(pool, async tx => {
    const months = Array.from({ length: AHEAD + 1 }, (_, offset) => firstOfMonth(now, offset).toISOString())
    const { made } = await tx.one(madeRow`
      select count(*) filter (where add_month(${table}, ${prefix}, m.month))::int as made
      from unnest(${sql.array(months, 'timestamptz')}) as m (month)`)
    return made
  })

const lastMonthRow = sql.type(z.object({ table: z.string(), upper: z.string() }))

/** Lists the partitioned tables that have no partition for a time. */
export async function listTablesWithoutMonth(pool: Pool, time: Date): Promise<readonly string[]> {
  const last = await pool.any(lastMonthRow`
    select p.relname::text as table, max(substring(pg_get_expr(c.relpartbound, c.oid) from ${UPPER_BOUND})) as upper
    from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
    where c.relnamespace = current_schema()::regnamespace and to_regclass(p.relname || '_rest') is not null
    group by 1 order by 1`)
  return last
    .filter(({ upper }) => idFloor(upper.slice(0, upper.lastIndexOf('_')), time) >= upper)
    .map(({ table }) => table)
}

/** Lists the partitions whose rows are all older than a time. */
const listPastMonths = (pool: Pool, { table, prefix }: MonthlyTable, before: Date): Promise<readonly string[]> =>
  pool.anyFirst(nameRow`
    select c.relname::text as name from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = ${table}::regclass
      and substring(pg_get_expr(c.relpartbound, c.oid) from ${UPPER_BOUND}) <= ${idFloor(prefix, before)}
    order by 1`)

/** Whether the partitions of a table are replicated to the target of a move of the cell. */
const isReplicated = async (db: Queryable, table: string): Promise<boolean> =>
  (
    await db.one(replicatedRow`
      select exists (
        select from pg_publication p join pg_publication_rel r on r.prpubid = p.oid join pg_inherits i on i.inhrelid = r.prrelid
        where starts_with(p.pubname, 'muster_move_') and i.inhparent = ${table}::regclass
      ) as replicated`)
  ).replicated

/** Runs a transaction whose statements may read a whole month, and wait only a short time for a lock. */
const inLongTransaction = <T>(pool: Pool, work: (tx: Transaction) => Promise<T>): Promise<T> =>
  withStatementLimit(Number.POSITIVE_INFINITY, () =>
    inTransaction(pool, async tx => {
      await setForTransaction(tx, { statement_timeout: '0', lock_timeout: `${LOCK_WAIT_MS}ms` })
      return work(tx)
    }),
  )

/** Drops a partition, unless other such work is in progress or its rows are still needed. Returns the number of its rows. */
const dropMonth = (
  pool: Pool,
  { table, expire, expireChanges }: MonthlyTable,
  name: string,
  now: Date,
): Promise<number> =>
  inLongTransaction(pool, async tx => {
    const partition = sql.fragment`${sql.identifier([name])}`
    // A wait for this lock blocks no reader or writer, and ends an automatic vacuum, which the short wait below would not.
    await setForTransaction(tx, { lock_timeout: `${VACUUM_WAIT_MS}ms` })
    await tx.query(voidStatement`lock table ${partition} in share update exclusive mode`)
    await setForTransaction(tx, { lock_timeout: `${LOCK_WAIT_MS}ms` })
    const { locked } = await tx.one(lockedRow`select pg_try_advisory_xact_lock(${PAST_MONTHS}) as locked`)
    if (!locked || !(await expire(tx, partition))) return 0
    // Rows of past months change only under the lock, or with their project and its counts.
    const scopes = await tx.any(scopeRow`
      select coalesce(project_id, '') as scope, count(*)::int as count from ${partition} group by 1`)
    await tx.query(voidStatement`lock table only ${sql.identifier([table])} in access exclusive mode`)
    if (await isReplicated(tx, table)) throw new Error('the move of the cell has begun')
    await expireChanges?.(tx, partition, now)
    await tx.query(voidStatement`drop table ${partition}`)
    await tx.query(voidStatement`
      insert into row_count_shards as c (scope, table_name, shard, count)
      select s.scope, ${table}, counter_shard(), -s.count
      from ${sql.unnest(
        scopes.map(({ scope, count }) => [scope, count]),
        ['text', 'int4'],
      )} as s (scope, count)
      where exists (select from row_count_shards k where k.scope = s.scope and k.table_name = ${table})
      on conflict (scope, table_name, shard) do update set count = c.count + excluded.count`)
    return scopes.reduce((sum, { count }) => sum + count, 0)
  })

const analyze = (pool: Pool, { table }: MonthlyTable): Promise<number> =>
  inLongTransaction(pool, async tx => {
    await tx.query(voidStatement`analyze ${sql.identifier([table])}`)
    return 0
  })

/**
 * Repeats work that does not get a lock in time, so that work which needs the table continues between the attempts. Returns 0
 * after the last one, as a dump may hold its lock for hours, and after another failure: rows are then deleted singly.
 */
async function untilLocked(
  { log, table, stopping }: Pick<Services, 'log'> & { table: string; stopping: AbortSignal | undefined },
  work: () => Promise<number>,
): Promise<number> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work()
    } catch (error) {
      if (isLockFailure(error) && attempt < ATTEMPTS && !stopping?.aborted)
        await sleep(PAUSE_MS, undefined, { signal: stopping }).catch(() => undefined)
      else {
        log.error({ table, err: error }, 'months not changed')
        return 0
      }
    }
  }
}

/**
 * Makes months ahead of time and drops those whose last row expired before a time, unless the cell is moved, which replicates each
 * partition, or the table is locked for long. Concurrent calls are safe.
 * @param before null: nothing expires
 * @returns the number of dropped rows
 */
export async function maintainMonths(
  { pool, clock, log }: Pick<Services, 'pool' | 'clock' | 'log'>,
  monthly: MonthlyTable,
  before: Date | null,
  stopping?: AbortSignal,
): Promise<number> {
  if (await isReplicated(pool, monthly.table)) {
    log.warn({ table: monthly.table }, 'months not changed: the cell is being moved')
    return 0
  }
  const locking = { log, table: monthly.table, stopping }
  const now = clock.now()
  const made = await untilLocked(locking, () => makeMonths(pool, monthly, now))
  const past = before === null ? [] : await listPastMonths(pool, monthly, before)
  let removed = 0
  for (const name of past)
    if (!stopping?.aborted) removed += await untilLocked(locking, () => dropMonth(pool, monthly, name, now))
  // Statistics of a partitioned table are not kept automatically.
  if (made + removed > 0) await untilLocked(locking, () => analyze(pool, monthly))
  return removed
}
