import { z } from 'zod'
import { allOf, type Fragment, type Queryable, rawFragment, sql, voidStatement } from '#core/db/sql.ts'
import { type ActivityKind, type ActivityRow, activityKind, type Severity } from './model.ts'

/** An entry to insert; `detail` is JSON text, the database sets `created_at`. */
export type NewActivityEntry = Omit<ActivityRow, 'created_at' | 'detail'> & { detail: string | null }

/** Returns the insert of entries under a condition. Repeating it after a lost connection has no effect. */
export const activityInsert = (entries: readonly NewActivityEntry[], guard: Fragment): Fragment => sql.fragment`
  insert into activity_entries (id, project_id, kind, severity, summary, detail, orchestration_run_id, agent_id,
    generation_id, ref_id)
  select e.id, e.project_id, e.kind, e.severity, e.summary, e.detail::json, e.orchestration_run_id, e.agent_id,
    e.generation_id, e.ref_id
  from json_to_recordset(${JSON.stringify(entries)}::json) as e (id text, project_id text, kind text, severity text,
    summary text, detail text, orchestration_run_id text, agent_id text, generation_id text, ref_id text)
  where ${guard}
  on conflict (id) do nothing
  returning project_id`

const projectRow = sql.type(z.object({ project_id: z.string() }))

/** Inserts entries; returns the projects whose feeds have new entries. */
export const insertActivity = (db: Queryable, entries: readonly NewActivityEntry[]): Promise<readonly string[]> =>
  db.anyFirst(projectRow`
    with written as (${activityInsert(entries, sql.fragment`true`)}) select distinct project_id from written`)

/** Position in the feed, given by an entry. */
export type FeedPosition = Pick<ActivityRow, 'created_at' | 'id'>

/** Filter of a feed; `where` is a further condition on the alias `t`. */
export type FeedSelection = {
  project: string
  kinds?: readonly ActivityKind[]
  severities?: readonly Severity[]
  where: Fragment
}

const positionTuple = ({ created_at, id }: FeedPosition): Fragment => sql.fragment`(${created_at}::timestamptz, ${id})`

/** Returns the condition for entries of one kind, or of all kinds. */
function selectionCondition(
  { project, severities, where }: FeedSelection,
  kind: Fragment | null,
  bound: Fragment | null,
): Fragment {
  return allOf([
    sql.fragment`t.project_id = ${project}`,
    kind && sql.fragment`t.kind = ${kind}`,
    severities && sql.fragment`t.severity = any(${sql.array([...severities], 'text')})`,
    // Matches the predicate of the partial index activity_entries_serious, which excludes the bulk of entries.
    severities && !severities.includes('info') && sql.fragment`t.severity <> 'info'`,
    where,
    bound,
  ])
}

/**
 * Lists up to `limit` entries (at most 1,001) in order. Indexes activity_entries_project, _kind, _serious, _agent,
 * _generation and _run. Each of several kinds is read by its own index scan and the results are merged: a condition on
 * a list of kinds would scan the feed until it found enough matches. The literal limit gives a prepared plan a
 * realistic row estimate.
 */
function listEntries(
  db: Queryable,
  selection: FeedSelection,
  bound: Fragment | null,
  limit: number,
  newestFirst: boolean,
) {
  const order = newestFirst ? sql.fragment`t.created_at desc, t.id desc` : sql.fragment`t.created_at, t.id`
  const maxRows = rawFragment(String(limit <= 101 ? 101 : 1001))
  const page = (kind: Fragment | null) => sql.fragment`
    select t.* from activity_entries t where ${selectionCondition(selection, kind, bound)} order by ${order} limit ${maxRows}`
  const kinds = selection.kinds ?? []
  const found =
    kinds.length > 1
      ? sql.fragment`select t.* from unnest(${sql.array([...new Set(kinds)], 'text')}) k (kind)
          cross join lateral (${page(sql.fragment`k.kind`)}) t`
      : page(kinds.length === 1 ? sql.fragment`${kinds[0]}` : null)
  return db.any(activityKind.sql`
    select ${activityKind.columns} from (${found}) t order by ${order} limit ${limit}`)
}

/** Lists up to 101 entries before a position (null: the newest), newest first. */
export const listActivityBefore = (
  db: Queryable,
  selection: FeedSelection,
  before: FeedPosition | null,
  limit: number,
): Promise<readonly ActivityRow[]> =>
  listEntries(db, selection, before && sql.fragment`(t.created_at, t.id) < ${positionTuple(before)}`, limit, true)

/** Lists up to 1,001 entries after a position (null: the oldest), oldest first. */
export const listActivityAfter = (
  db: Queryable,
  selection: FeedSelection,
  after: FeedPosition | null,
  limit: number,
): Promise<readonly ActivityRow[]> =>
  listEntries(db, selection, after && sql.fragment`(t.created_at, t.id) > ${positionTuple(after)}`, limit, false)

const timeRow = sql.type(z.object({ time: z.string() }))

/** Returns the time of the database clock, which also sets `created_at` of entries. */
export const readFeedTime = (db: Queryable): Promise<string> =>
  db.oneFirst(timeRow`select clock_timestamp()::timestamptz(3) as time`)

/**
 * Returns the time before which all entries are committed: the start of the oldest writing transaction, otherwise now.
 * Entries carry the time of their insert, so a later transaction cannot add an older entry. An active statement may be
 * about to write and counts too. Transactions older than ten seconds are ignored.
 */
export const committedUntil = (db: Queryable): Promise<string> =>
  db.oneFirst(timeRow`
    select date_trunc('milliseconds', greatest(clock_timestamp() - interval '10 seconds', least(clock_timestamp(),
      min(case when a.backend_xid is not null then a.xact_start when a.state = 'active' then a.query_start end)))) as time
    from pg_stat_activity a
    where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()`)

/** Deletes up to `limit` entries older than `before` (index activity_entries_created). Returns their number. */
export const deleteActivity = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from activity_entries where ctid = any (array(
        select ctid from activity_entries where created_at < ${before.toISOString()}::timestamptz
        order by created_at limit ${limit}))`)
  ).rowCount
