import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { inTransaction, type Pool } from '#core/db/pool.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { isolateFailures, yieldAfter } from '#core/work/sweeps.ts'
import { foldProject } from './folds.ts'
import { turnVersions } from './report-store.ts'

/**
 * Replaces old usage events by sums per hour (USAGE_ROLLUP_DAYS). Every report, receipt of a run and invoice of a period
 * of whole hours has the same figures before and after.
 */

const DAY_MS = 86_400_000
/** Events of one transaction. */
const BATCH = 2000
/** Projects of one page. */
const PROJECTS = 200

/** Columns that reports filter and group by: rows of a roll-up differ in at least one of them. */
const KEY = [
  'meter_type',
  'provider',
  'model',
  'served_model',
  'service_tier',
  'ai_provider_id',
  'agent_id',
  'orchestration_run_id',
  'actor_id',
  'session_id',
  'trigger_id',
  'action_id',
  'source',
  'publisher_project_id',
]

const Batch = z.object({
  read: z.int(),
  removed: z.int(),
  written: z.int(),
  /** Time and id of the last event of the batch; null if the batch is empty. */
  last_at: z.string().nullable(),
  last_id: z.string().nullable(),
  /** Time of the first event of a turn whose record exists. */
  turn_at: z.string().nullable(),
})

type Position = { at: string; id: string }

/**
 * Replaces the events of a batch that belong to the same hour and agree in KEY by one row with the sums, which has the
 * ID and the key of the first one. Events of a turn whose record exists remain, for its receipt. Separate rows for
 * priced and unpriced events, and separate components per price, because reports count them differently; an event with
 * a fraction of a token remains. Index usage_events_project. Requires a transaction: a local setting keeps the sums from
 * counting the rows again.
 */
async function rollUpBatch(
  tx: Queryable,
  { project_id, from, before }: { project_id: string; from: string; before: string },
  after: Position | null,
): Promise<z.output<typeof Batch>> {
  await setForTransaction(tx, { 'muster.usage_rollup': 'on' })
  const columnsOf = (alias: string) =>
    sql.join(
      KEY.map(name => sql.identifier([alias, name])),
      sql.fragment`, `,
    )
  const start = after
    ? sql.fragment`and (t.created_at, t.id) > (${after.at}::timestamptz, ${after.id})`
    : sql.fragment`and t.created_at >= ${from}::timestamptz`
  const turnExists = turnVersions.only()?.exists ?? sql.fragment`false`
  return tx.one(sql.type(Batch)`
    with batch as materialized (
      select t.*, t.generation_id is not null and ${turnExists} as turn_exists from usage_events t
      where t.project_id = ${project_id} and t.created_at < ${before}::timestamptz ${start}
      order by t.created_at, t.id limit ${BATCH}
    ), candidates as (
      select b.*, case when b.orchestration_run_id is not null then b.node_id end as node,
        date_trunc('hour', b.created_at, 'UTC') as hour, usage_unpriced(b.components) as unpriced
      from batch b where not b.turn_exists and not exists (
        select from jsonb_to_recordset(b.components) as c (unit text, quantity numeric)
        where c.unit = 'token' and c.quantity <> trunc(c.quantity))
    ), grouped as (
      select e.*, min(e.id) over same as row_id, count(*) over same as rows
      from candidates e
      window same as (partition by e.hour, ${columnsOf('e')}, e.node, e.unpriced, e.cost_usd is null)
    ), merged as materialized (select * from grouped where rows > 1),
    parts as (
      select m.row_id, c.component, c.unit, c.billable, c.unit_price, c.price_id, sum(c.quantity) as quantity,
        sum(c.cost_usd) as cost_usd, min(a.place) as place
      from merged m cross join lateral jsonb_array_elements(m.components) with ordinality a (part, place)
        cross join lateral jsonb_to_record(a.part) as c (component text, unit text, billable boolean, unit_price numeric,
          price_id text, quantity numeric, cost_usd numeric)
      group by 1, 2, 3, 4, 5, 6
    ), components as (
      select row_id, jsonb_agg(jsonb_build_object('component', component, 'quantity', trim_scale(quantity), 'unit', unit,
        'billable', billable, 'unit_price', trim_scale(unit_price), 'cost_usd', trim_scale(cost_usd), 'price_id', price_id)
        order by place, component, unit, price_id) as components
      from parts group by row_id
    ), sums as (
      select row_id, max(created_at) as created_at, sum(event_count) as event_count, sum(tokens) as tokens,
        sum(cost_usd) as cost_usd
      from merged group by row_id
    ), removed as (
      delete from usage_events where id in (select id from merged) returning 1
    ), written as (
      insert into usage_events (id, project_id, idempotency_key, ${sql.join(
        KEY.map(name => sql.identifier([name])),
        sql.fragment`, `,
      )}, node_id, cost_usd, tokens, components, event_count, created_at)
      select s.row_id, ${project_id}, m.idempotency_key, ${columnsOf('m')}, m.node, s.cost_usd, s.tokens,
        coalesce(c.components, '[]'), s.event_count, s.created_at
      from sums s join merged m on m.id = s.row_id left join components c on c.row_id = s.row_id
      -- After the deletes, which free the ids.
      where (select count(*) from removed) > 0
      returning 1
    ), last as (select created_at, id from batch order by created_at desc, id desc limit 1)
    select (select count(*) from batch) as read, (select count(*) from removed) as removed,
      (select count(*) from written) as written, (select created_at from last) as last_at, (select id from last) as last_id,
      (select min(created_at) from batch where turn_exists) as turn_at`)
}

const ProjectRow = z.object({
  id: z.string(),
  through: z.string().nullable(),
  turns_remain: z.boolean().nullable(),
  /** Whether retention deletes turns. */
  turns_expire: z.boolean(),
})
type ProjectRow = z.output<typeof ProjectRow>

const listProjects = (db: Queryable, after: string, limit: number): Promise<readonly ProjectRow[]> =>
  db.any(sql.type(ProjectRow)`
    select p.id, u.through, u.turns_remain, p.trace_retention_days is not null as turns_expire
    from projects p left join usage_roll_ups u on u.project_id = p.id
    where p.id > ${after} order by p.id limit ${limit}`)

const recordRollUp = (db: Queryable, projectId: string, through: string, turnsRemain: boolean): Promise<unknown> =>
  db.query(voidStatement`
    insert into usage_roll_ups (project_id, through, turns_remain) values (${projectId}, ${through}::timestamptz, ${turnsRemain})
    on conflict (project_id) do update set through = excluded.through, turns_remain = excluded.turns_remain`)

const HOUR_MS = 3_600_000
const hourOf = (time: string): string => new Date(Math.floor(Date.parse(time) / HOUR_MS) * HOUR_MS).toISOString()

/** Start of all time, for a project without a roll-up. */
const BEGINNING = '-infinity'

/**
 * Rolls up the events of a project before a time, in passes until one merges nothing: an hour may span batches. While
 * retention deletes turns, the next roll-up begins at the first event of an existing turn; without it, such events are
 * not read again. Leaves a project whose usage is being folded to the next night. Returns the number of rows saved.
 */
async function rollUpProject(
  pool: Pool,
  { id, through: earlier, turns_remain, turns_expire }: ProjectRow,
  before: string,
  stopping: AbortSignal,
): Promise<number> {
  const from = earlier === null || (turns_remain && turns_expire) ? BEGINNING : earlier
  const span = { project_id: id, from, before }
  // An event that is replaced before its fold would be missing in the sums.
  if (!(await foldProject(pool, id))) return 0
  let saved = 0
  for (let merged = true; merged && !stopping.aborted; ) {
    merged = false
    let firstTurn: string | null = null
    for (let after: Position | null = null; !stopping.aborted; ) {
      const started = performance.now()
      const batch = await inTransaction(pool, tx => rollUpBatch(tx, span, after))
      saved += batch.removed - batch.written
      merged ||= batch.removed > 0
      firstTurn ??= batch.turn_at
      if (batch.last_at === null || batch.last_id === null || batch.read < BATCH) break
      after = { at: batch.last_at, id: batch.last_id }
      await yieldAfter(performance.now() - started, stopping)
    }
    if (merged || stopping.aborted) continue
    const through = turns_expire && firstTurn ? hourOf(firstTurn) : before
    await recordRollUp(pool, id, through, !turns_expire && (firstTurn !== null || turns_remain === true))
  }
  return saved
}

/**
 * Rolls up usage older than USAGE_ROLLUP_DAYS (0 disables it), project by project. Returns the number of rows saved.
 */
export async function rollUpUsage(services: Services, stopping: AbortSignal): Promise<number> {
  const { config, clock, pool } = services
  if (config.USAGE_ROLLUP_DAYS === 0) return 0
  const before = hourOf(new Date(clock.now().getTime() - config.USAGE_ROLLUP_DAYS * DAY_MS).toISOString())
  let saved = 0
  for (let after = ''; !stopping.aborted; ) {
    const projects = await listProjects(pool, after, PROJECTS)
    for (const project of projects)
      await isolateFailures(services, { project_id: project.id }, async () => {
        saved += await rollUpProject(pool, project, before, stopping)
      })
    if (projects.length < PROJECTS) break
    after = projects[projects.length - 1].id
  }
  return saved
}
