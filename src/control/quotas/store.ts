import { z } from 'zod'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { METRICS, MODES, type QuotaInput, type QuotaPatch, type QuotaRow, SCOPES } from './model.ts'
import { WINDOWS } from './windows.ts'

/** Adds a quota; null when its identity exists (index quotas_identity, null refs not distinct). */
export const insertQuota = (
  db: Queryable,
  id: string,
  projectId: string,
  quota: QuotaInput & { on_unpriced: string | null },
): Promise<QuotaRow | null> =>
  db.maybeOne(sql.unsafe`
    insert into quotas (id, project_id, scope, scope_ref, metric, "window", "limit", mode, meter_type, on_unpriced, warn_at)
    values (${id}, ${projectId}, ${quota.scope}, ${quota.scope_ref ?? null}, ${quota.metric}, ${quota.window}, ${quota.limit},
      ${quota.mode}, ${quota.meter_type ?? null}, ${quota.on_unpriced}, ${sql.array(quota.warn_at, 'float8')})
    on conflict (project_id, scope, scope_ref, metric, "window", meter_type) do nothing
    returning *`) as Promise<QuotaRow | null>

/** Writes the fields a patch names; null when the quota is gone. */
export const updateQuota = (db: Queryable, id: string, patch: QuotaPatch): Promise<QuotaRow | null> => {
  const sets = [sql.fragment`updated_at = now()`]
  if (patch.limit !== undefined) sets.push(sql.fragment`"limit" = ${patch.limit}`)
  if (patch.mode !== undefined) sets.push(sql.fragment`mode = ${patch.mode}`)
  if (patch.on_unpriced !== undefined) sets.push(sql.fragment`on_unpriced = ${patch.on_unpriced}`)
  if (patch.warn_at !== undefined) sets.push(sql.fragment`warn_at = ${sql.array(patch.warn_at, 'float8')}`)
  return db.maybeOne(sql.unsafe`
    update quotas set ${sql.join(sets, sql.fragment`, `)} where id = ${id} returning *`) as Promise<QuotaRow | null>
}

/** Deletes a quota with its counters. False when it was gone. */
export const deleteQuota = async (db: Queryable, id: string): Promise<boolean> => {
  const { rowCount } = await db.query(sql.unsafe`
    with counters as (delete from quota_counters where quota_id = ${id})
    delete from quotas where id = ${id}`)
  return rowCount > 0
}

const MatchableQuota = z.object({
  id: z.string(),
  project_id: z.string(),
  scope: z.enum(SCOPES),
  scope_ref: z.string().nullable(),
  window: z.enum(WINDOWS),
})
/** What never changes of a requests quota: enough to know which requests it counts. */
export type MatchableQuota = z.output<typeof MatchableQuota>

/** The requests quotas of projects (index quotas_identity). */
export const requestQuotas = (db: Queryable, projectIds: string[]): Promise<readonly MatchableQuota[]> =>
  db.any(sql.type(MatchableQuota)`
    select id, project_id, scope, scope_ref, "window" from quotas
    where project_id = any(${sql.array(projectIds, 'text')}) and metric = 'requests' order by id`)

/** A quota as it stood when something was measured against it. */
const Measured = z.object({
  id: z.string(),
  project_id: z.string(),
  scope: z.enum(SCOPES),
  scope_ref: z.string().nullable(),
  metric: z.enum(METRICS),
  window: z.enum(WINDOWS),
  limit: z.number(),
  mode: z.enum(MODES),
  meter_type: z.string().nullable(),
  warn_at: z.array(z.number()),
  fired_window_key: z.string().nullable(),
  audited_window_key: z.string().nullable(),
  warned_window_key: z.string().nullable(),
  warned_fraction: z.number().nullable(),
})
export type Measured = z.output<typeof Measured>

const measured = sql.fragment`q.id, q.project_id, q.scope, q.scope_ref, q.metric, q."window", q."limit", q.mode,
  q.meter_type, q.warn_at, q.fired_window_key, q.audited_window_key, q.warned_window_key, q.warned_fraction`

const Count = Measured.extend({ count: z.int() })
/** A requests quota and its counter after it has counted. */
export type Count = z.output<typeof Count>

/**
 * Adds to the counters of several quotas and reads the limits that hold now, in one round trip. A quota that was
 * deleted is left out. Rows are taken in the order of their ids, so two processes that count the same quotas wait for
 * each other instead of deadlocking; each waits for one statement of the other, never for a longer transaction.
 */
export const addCounts = (
  db: Queryable,
  sums: { quota_id: string; window_key: string; window_start: string; count: number }[],
): Promise<readonly Count[]> =>
  db.any(sql.type(Count)`
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
    select ${measured}, counted.count
    from counted join asked q on q.id = counted.quota_id`)

/** Which of some projects have storage_bytes quotas (index quotas_identity). */
export const projectsWithStorageQuota = (db: Queryable, projectIds: string[]): Promise<readonly string[]> =>
  db.anyFirst(sql.type(z.object({ project_id: z.string() }))`
    select distinct project_id from quotas
    where project_id = any(${sql.array(projectIds, 'text')}) and scope = 'project' and metric = 'storage_bytes'`)

const StorageQuota = Measured.extend({ bytes: z.number().nullable(), day: z.string().nullable() })

/**
 * The storage_bytes quotas of a project, each with the bytes and the UTC day of the project's newest snapshot, null
 * before the first (indexes quotas_identity and storage_snapshots_pkey).
 */
export const storageQuotas = (db: Queryable, projectId: string): Promise<readonly z.output<typeof StorageQuota>[]> =>
  db.any(sql.type(StorageQuota)`
    select ${measured}, s.bytes, s.day
    from quotas q
    left join lateral (
      select bytes, day from storage_snapshots where project_id = q.project_id order by day desc limit 1
    ) s on true
    where q.project_id = ${projectId} and q.scope = 'project' and q.metric = 'storage_bytes'
    order by q.id`)

/** What a quota has counted in a window (primary key of quota_counters). */
export const countIn = async (db: Queryable, id: string, windowKey: string): Promise<number> =>
  Number(
    (await db.maybeOneFirst(sql.unsafe`
      select count from quota_counters where quota_id = ${id} and window_key = ${windowKey}`)) ?? 0,
  )

/** Takes the lock under which the marks of a quota move; foreign keys to it do not wait for it. */
export const lockMarks = (db: Queryable, id: string): Promise<QuotaRow | null> =>
  db.maybeOne(sql.unsafe`select * from quotas where id = ${id} for no key update`) as Promise<QuotaRow | null>

export type Marks = Pick<
  QuotaRow,
  'fired_window_key' | 'last_fired_at' | 'audited_window_key' | 'warned_window_key' | 'warned_fraction'
>

/** Writes the marks of a quota whose lock is held. */
export const setMarks = (db: Queryable, id: string, marks: Marks): Promise<unknown> =>
  db.query(sql.unsafe`
    update quotas set fired_window_key = ${marks.fired_window_key}, last_fired_at = ${marks.last_fired_at}::timestamptz,
      audited_window_key = ${marks.audited_window_key}, warned_window_key = ${marks.warned_window_key},
      warned_fraction = ${marks.warned_fraction}
    where id = ${id}`)

/** Deletes up to `limit` counters of windows that began before a time (index quota_counters_start). Answers how many. */
export const deleteCounters = (db: Queryable, before: Date, limit: number): Promise<number> =>
  db
    .query(sql.unsafe`
      delete from quota_counters where (quota_id, window_key) in (
        select quota_id, window_key from quota_counters where window_start < ${before.toISOString()}::timestamptz
        order by window_start limit ${limit})`)
    .then(({ rowCount }) => rowCount)

/** Deletes up to `limit` counters whose quota is gone: those counted while it was deleted, or deleted with its project. */
export const deleteOrphanedCounters = (db: Queryable, limit: number): Promise<number> =>
  db
    .query(sql.unsafe`
      delete from quota_counters where (quota_id, window_key) in (
        select quota_id, window_key from quota_counters c
        where not exists (select 1 from quotas q where q.id = c.quota_id) limit ${limit})`)
    .then(({ rowCount }) => rowCount)
