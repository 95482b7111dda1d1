import { z } from 'zod'
import { allOf, type Fragment, type Queryable, rawFragment, sql, voidStatement } from '../../core/db/sql.ts'
import { type ActivityKind, type ActivityRow, activityKind, type Severity } from './model.ts'

/** An entry before it is written; `detail` is JSON text, the database gives the time. */
export type NewActivityEntry = Omit<ActivityRow, 'created_at' | 'detail'> & { detail: string | null }

/** The insert of entries where a condition holds. One that is written again, after a connection was lost, changes nothing. */
export const entryRows = (entries: readonly NewActivityEntry[], guard: Fragment): Fragment => sql.fragment`
  insert into activity_entries (id, project_id, kind, severity, summary, detail, orchestration_run_id, agent_id,
    generation_id, ref_id)
  select e.id, e.project_id, e.kind, e.severity, e.summary, e.detail::json, e.orchestration_run_id, e.agent_id,
    e.generation_id, e.ref_id
  from json_to_recordset(${JSON.stringify(entries)}::json) as e (id text, project_id text, kind text, severity text,
    summary text, detail text, orchestration_run_id text, agent_id text, generation_id text, ref_id text)
  where ${guard}
  on conflict (id) do nothing
  returning project_id`

const projects = sql.type(z.object({ project_id: z.string() }))

/** Writes entries; returns the projects whose feeds they are new in. */
export const writeEntries = (db: Queryable, entries: readonly NewActivityEntry[]): Promise<readonly string[]> =>
  db.anyFirst(projects`
    with written as (${entryRows(entries, sql.fragment`true`)}) select distinct project_id from written`)

/** A place in the feed: that of an entry. */
export type Position = Pick<ActivityRow, 'created_at' | 'id'>

/** Which entries are read. `where` are further conditions over the alias `t`. */
export type FeedSelection = {
  project: string
  kinds?: readonly ActivityKind[]
  severities?: readonly Severity[]
  where: Fragment
}

const at = ({ created_at, id }: Position): Fragment => sql.fragment`(${created_at}::timestamptz, ${id})`

/** Entries of one kind, or of all. */
function conditions(
  { project, severities, where }: FeedSelection,
  kind: Fragment | null,
  bound: Fragment | null,
): Fragment {
  return allOf([
    sql.fragment`t.project_id = ${project}`,
    kind && sql.fragment`t.kind = ${kind}`,
    severities && sql.fragment`t.severity = any(${sql.array([...severities], 'text')})`,
    // In the words of the index, which is small where nearly all entries are of no concern.
    severities && !severities.includes('info') && sql.fragment`t.severity <> 'info'`,
    where,
    bound,
  ])
}

/**
 * Entries in an order, at most `limit` (up to 1,001). Indexes activity_entries_project, _kind, _serious, _agent,
 * _generation and _run. Several kinds are read each by its index and merged: a condition on a list of kinds would read the
 * feed until enough of them came by. The bound in the text tells a prepared plan how few rows it is about.
 */
function read(db: Queryable, selection: FeedSelection, bound: Fragment | null, limit: number, newestFirst: boolean) {
  const order = newestFirst ? sql.fragment`t.created_at desc, t.id desc` : sql.fragment`t.created_at, t.id`
  const most = rawFragment(String(limit <= 101 ? 101 : 1001))
  const page = (kind: Fragment | null) => sql.fragment`
    select t.* from activity_entries t where ${conditions(selection, kind, bound)} order by ${order} limit ${most}`
  const kinds = selection.kinds ?? []
  const found =
    kinds.length > 1
      ? sql.fragment`select t.* from unnest(${sql.array([...new Set(kinds)], 'text')}) k (kind)
          cross join lateral (${page(sql.fragment`k.kind`)}) t`
      : page(kinds.length === 1 ? sql.fragment`${kinds[0]}` : null)
  return db.any(activityKind.sql`
    select ${activityKind.columns} from (${found}) t order by ${order} limit ${limit}`)
}

/** The newest entries before a place (null: of all), newest first; at most 101. */
export const entriesBefore = (
  db: Queryable,
  selection: FeedSelection,
  before: Position | null,
  limit: number,
): Promise<readonly ActivityRow[]> =>
  read(db, selection, before && sql.fragment`(t.created_at, t.id) < ${at(before)}`, limit, true)

/** The oldest entries after a place (null: of all), oldest first; at most 1,001. */
export const activityAfter = (
  db: Queryable,
  selection: FeedSelection,
  after: Position | null,
  limit: number,
): Promise<readonly ActivityRow[]> =>
  read(db, selection, after && sql.fragment`(t.created_at, t.id) > ${at(after)}`, limit, false)

const time = sql.type(z.object({ time: z.string() }))

/** The time by the clock of the database, which gives entries theirs. */
export const feedTime = (db: Queryable): Promise<string> =>
  db.oneFirst(time`select clock_timestamp()::timestamptz(3) as time`)

/**
 * The time before which every entry is committed: when the oldest transaction that writes began, else now. An entry has the
 * time at which it was written, so what begins later cannot write an older one. A statement under way may be about to
 * write. What takes longer than ten seconds is not waited for.
 */
export const committedUntil = (db: Queryable): Promise<string> =>
  db.oneFirst(time`
    select date_trunc('milliseconds', greatest(clock_timestamp() - interval '10 seconds', least(clock_timestamp(),
      min(case when a.backend_xid is not null then a.xact_start when a.state = 'active' then a.query_start end)))) as time
    from pg_stat_activity a
    where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()`)

/** Deletes up to `limit` entries older than a time (index activity_entries_created). Returns how many. */
export const deleteActivity = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from activity_entries where ctid = any (array(
        select ctid from activity_entries where created_at < ${before.toISOString()}::timestamptz
        order by created_at limit ${limit}))`)
  ).rowCount
