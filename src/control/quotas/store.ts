import { z } from 'zod'
import { countStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { QUOTA_METRICS, QUOTA_MODES, QUOTA_SCOPES, type QuotaRow, quotaKind } from './model.ts'
import { QUOTA_WINDOWS } from './windows.ts'

const CachedQuota = z.object({
  id: z.string(),
  project_id: z.string(),
  scope: z.enum(QUOTA_SCOPES),
  scope_ref: z.string().nullable(),
  metric: z.enum(QUOTA_METRICS),
  window: z.enum(QUOTA_WINDOWS),
  reserve: z.boolean(),
})
/** Cached fields of a quota; all except `reserve` are immutable. */
export type CachedQuota = z.output<typeof CachedQuota>

/** Lists the cached fields of the quotas of projects (index quotas_identity). */
export const listCachedQuotas = (db: Queryable, projectIds: string[]): Promise<readonly CachedQuota[]> =>
  db.any(sql.type(CachedQuota)`
    select id, project_id, scope, scope_ref, metric, "window", reserve from quotas
    where project_id = any(${sql.array(projectIds, 'text')}) order by id`)

/** A quota as read by a measurement. */
export const QuotaMeasurement = z.object({
  id: z.string(),
  project_id: z.string(),
  scope: z.enum(QUOTA_SCOPES),
  scope_ref: z.string().nullable(),
  metric: z.enum(QUOTA_METRICS),
  window: z.enum(QUOTA_WINDOWS),
  limit: z.number(),
  mode: z.enum(QUOTA_MODES),
  meter_type: z.string().nullable(),
  warn_at: z.array(z.number()),
  fired_window_key: z.string().nullable(),
  audited_window_key: z.string().nullable(),
  warned_window_key: z.string().nullable(),
  warned_fraction: z.number().nullable(),
})
export type QuotaMeasurement = z.output<typeof QuotaMeasurement>

/** Columns of a quota `q`. */
export const measurementColumns = sql.fragment`q.id, q.project_id, q.scope, q.scope_ref, q.metric, q."window", q."limit", q.mode,
  q.meter_type, q.warn_at, q.fired_window_key, q.audited_window_key, q.warned_window_key, q.warned_fraction`

const CountedQuota = QuotaMeasurement.extend({ count: z.int() })
/** A requests quota with its incremented counter. */
export type CountedQuota = z.output<typeof CountedQuota>

/**
 * Increments the counters of several quotas and returns them with the current quotas, in one round trip. Deleted quotas
 * are omitted. Rows are locked by id, so two processes that count the same quotas cannot deadlock; each waits for one
 * statement of the other.
 */
export const incrementCounters = (
  db: Queryable,
  sums: { quota_id: string; window_key: string; window_start: string; count: number }[],
): Promise<readonly CountedQuota[]> =>
  db.any(sql.type(CountedQuota)`
    with asked as materialized (
      select q.*, a.window_key, a.window_start, a.n
      from ${sql.unnest(
        sums.map(sum => [sum.quota_id, sum.window_key, sum.window_start, sum.count]),
        ['text', 'text', 'timestamptz', 'int8'],
      )} as a (quota_id, window_key, window_start, n)
      join quotas q on q.id = a.quota_id
    ), counted as (
      insert into quota_counters as c (quota_id, window_key, window_start, count)
      select id, window_key, window_start, n from asked order by id, window_key
      on conflict (quota_id, window_key) do update set count = c.count + excluded.count
      returning quota_id, count
    )
    select ${measurementColumns}, counted.count
    from counted join asked q on q.id = counted.quota_id`)

const StorageQuota = QuotaMeasurement.extend({ bytes: z.number().nullable(), day: z.string().nullable() })

/**
 * Lists the storage_bytes quotas of a project with the bytes and the UTC day of its newest snapshot, null without one
 * (indexes quotas_identity and storage_snapshots_pkey).
 */
export const listStorageQuotas = (
  db: Queryable,
  projectId: string,
): Promise<readonly z.output<typeof StorageQuota>[]> =>
  db.any(sql.type(StorageQuota)`
    select ${measurementColumns}, s.bytes, s.day
    from quotas q
    left join lateral (
      select bytes, day from storage_snapshots where project_id = q.project_id order by day desc limit 1
    ) s on true
    where q.project_id = ${projectId} and q.scope = 'project' and q.metric = 'storage_bytes'
    order by q.id`)

/** Returns the counter of a quota in a window (primary key of quota_counters). */
export const readCounter = async (db: Queryable, id: string, windowKey: string): Promise<number> =>
  (await db.maybeOneFirst(
    countStatement`select count from quota_counters where quota_id = ${id} and window_key = ${windowKey}`,
  )) ?? 0

/** Locks a quota to advance its marks; the lock mode does not block foreign key checks. */
export const lockMarks = (db: Queryable, id: string): Promise<QuotaRow | null> =>
  db.maybeOne(quotaKind.sql`select ${quotaKind.columns} from quotas t where t.id = ${id} for no key update`)

export type ReportedMarks = Pick<
  QuotaRow,
  'fired_window_key' | 'last_fired_at' | 'audited_window_key' | 'warned_window_key' | 'warned_fraction'
>

/** Updates the marks of a locked quota without changing `updated_at`. */
export const setMarks = (db: Queryable, id: string, marks: ReportedMarks): Promise<unknown> =>
  db.query(voidStatement`
    update quotas set fired_window_key = ${marks.fired_window_key}, last_fired_at = ${marks.last_fired_at}::timestamptz,
      audited_window_key = ${marks.audited_window_key}, warned_window_key = ${marks.warned_window_key},
      warned_fraction = ${marks.warned_fraction}
    where id = ${id}`)

/** Deletes the counters of a quota (primary key of quota_counters). */
export const deleteCountersOf = (db: Queryable, id: string): Promise<unknown> =>
  db.query(voidStatement`delete from quota_counters where quota_id = ${id}`)

/**
 * Deletes up to `limit` counters of windows that began before a time (index quota_counters_start). Returns their
 * number.
 */
export const deleteQuotaCounters = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from quota_counters where (quota_id, window_key) in (
        select quota_id, window_key from quota_counters where window_start < ${before.toISOString()}::timestamptz
        order by window_start limit ${limit})`)
  ).rowCount

/** Deletes up to `limit` counters of deleted quotas, left by concurrent counting or by project deletion. */
export const deleteOrphanedCounters = async (db: Queryable, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from quota_counters where (quota_id, window_key) in (
        select quota_id, window_key from quota_counters c
        where not exists (select 1 from quotas q where q.id = c.quota_id) limit ${limit})`)
  ).rowCount
