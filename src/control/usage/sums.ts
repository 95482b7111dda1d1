import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

/** Longer than every window that is measured. */
const KEPT_DAYS = 40
/** Hours that are over for so long are written to by nobody. */
const SETTLED_HOURS = 2
/** How far back shards are looked for: longer than the sweep may have been missing. */
const FOLDED_DAYS = 7

/** What a project, an agent or an actor used. `metered`, `priced` and `unpriced` count model calls other than embeddings. */
export const SumsRow = z.object({
  events: z.int(),
  tokens: z.int(),
  cost_usd: z.number(),
  metered: z.int(),
  priced: z.int(),
  unpriced: z.int(),
})
export type SumsRow = z.output<typeof SumsRow>

/** So many model calls without one price among them say that nothing is known of what they cost. */
const BLACKOUT = 3

/** Whether usage is unpriced as a whole, so that its cost says nothing. Usage that is priced in part has a cost. */
export const isFullyUnpriced = ({ metered, priced }: Pick<SumsRow, 'metered' | 'priced'>): boolean =>
  metered >= BLACKOUT && priced === 0

/**
 * A select of one row, `Used`: what was used since a time. Whole hours are added up already; what lies before the first of
 * them is read from events (indexes usage_sums_pkey, usage_events_project).
 * @param of the scope with its ref as usage_sums names it; `meter` null for every meter
 */
export function usedSince(of: {
  project: Fragment
  scope: Fragment
  ref: Fragment
  since: Fragment
  meter: Fragment
}): Fragment {
  const { project, scope, ref, since, meter } = of
  const hour = sql.fragment`date_trunc('hour', ${since} + interval '3599999 milliseconds', 'UTC')`
  return sql.fragment`
    select coalesce(sum(u.events), 0)::int8 as events, coalesce(sum(u.tokens), 0)::int8 as tokens, coalesce(sum(u.cost_usd), 0) as cost_usd,
      coalesce(sum(u.metered), 0)::int8 as metered, coalesce(sum(u.priced), 0)::int8 as priced, coalesce(sum(u.unpriced), 0)::int8 as unpriced
    from (
      select s.events, s.tokens, s.cost_usd, s.metered, s.priced, s.unpriced from usage_sums s
      where s.project_id = ${project} and s.scope = ${scope} and s.ref = ${ref} and s.hour >= ${hour} and s.meter_type = coalesce(${meter}, s.meter_type)
      union all
      select 1, e.tokens, e.cost_usd, m.used, case when e.cost_usd is not null then m.used else 0 end, case when usage_unpriced(e.components) then m.used else 0 end
      from usage_events e cross join lateral (select (${isModelUse})::int as used) m
      where e.project_id = ${project} and e.created_at >= ${since} and e.created_at < ${hour}
        and case ${scope} when 'project' then true when 'agent' then e.agent_id = ${ref} else e.actor_id = ${ref} end
        and e.meter_type = coalesce(${meter}, e.meter_type)
    ) u`
}

const Fullest = z.object({ actor_id: z.string(), used: z.number() })
export type Fullest = z.output<typeof Fullest>

/**
 * The actors of a project that used most since a time, fullest first (indexes usage_sums_pkey, usage_events_project). Reads a sum
 * for each actor and hour of the span.
 */
export const fullestActors = (
  db: Queryable,
  of: { project_id: string; metric: 'tokens' | 'cost_usd'; since: string; meter: string | null },
  limit: number,
): Promise<readonly Fullest[]> => {
  const since = sql.fragment`${of.since}::timestamptz`
  const hour = sql.fragment`date_trunc('hour', ${since} + interval '3599999 milliseconds', 'UTC')`
  const value = sql.identifier([of.metric])
  return db.any(sql.type(Fullest)`
    select u.ref as actor_id, sum(u.used)::float8 as used from (
      select s.ref, s.${value} as used from usage_sums s
      where s.project_id = ${of.project_id} and s.scope = 'actor' and s.hour >= ${hour}
        and s.meter_type = coalesce(${of.meter}, s.meter_type)
      union all
      select e.actor_id, e.${value} from usage_events e
      where e.project_id = ${of.project_id} and e.created_at >= ${since} and e.created_at < ${hour}
        and e.actor_id is not null and e.meter_type = coalesce(${of.meter}, e.meter_type)
    ) u group by u.ref having sum(u.used) > 0 order by used desc, u.ref limit ${limit}`)
}

/** Whether an event `e` is of a model call other than an embedding. */
const isModelUse = sql.fragment`e.meter_type = 'llm_tokens' and e.source is distinct from 'embedding'`

/** What a project used in each of some spans that end now, longest first or not, in one statement. */
export const usedWithin = (
  db: Queryable,
  projectId: string,
  since: readonly Date[],
  meter: string | null,
): Promise<readonly SumsRow[]> =>
  db.any(sql.type(SumsRow)`
    select u.* from unnest(${sql.array(
      since.map(time => time.toISOString()),
      'timestamptz',
    )}) with ordinality w (since, n)
    cross join lateral (${usedSince({
      project: sql.fragment`${projectId}`,
      scope: sql.fragment`'project'`,
      ref: sql.fragment`''`,
      since: sql.fragment`w.since`,
      meter: sql.fragment`${meter}::text`,
    })}) u order by w.n`)

const usedInRun = sql.type(
  SumsRow.pick({ tokens: true, cost_usd: true, metered: true, priced: true }).extend({ tool_calls: z.int() }),
)

/** What a run has used so far, without runs that it started; `tool_calls` are uses of tools. By usage_events_run. */
export const usedByRun = (
  db: Queryable,
  projectId: string,
  runId: string,
): Promise<Pick<SumsRow, 'tokens' | 'cost_usd' | 'metered' | 'priced'> & { tool_calls: number }> =>
  db.one(usedInRun`
    select coalesce(sum(e.tokens), 0)::int8 as tokens, coalesce(sum(e.cost_usd), 0) as cost_usd,
      count(*) filter (where ${isModelUse}) as metered, count(*) filter (where ${isModelUse} and e.cost_usd is not null) as priced,
      count(*) filter (where e.meter_type = 'tool_execution') as tool_calls
    from usage_events e where e.orchestration_run_id = ${runId} and e.project_id = ${projectId}`)

const UnpricedRow = z.object({ provider: z.string(), model: z.string(), component: z.string() })
export type UnpricedRow = z.output<typeof UnpricedRow>

/** Events that are searched for what has no price, and rows that are named. */
const SEARCHED = 10_000
const NAMED = 10

/**
 * What was metered since a time and has no price, as provider, model and component; at most ten, out of the newest 10,000
 * events (indexes usage_events_project, usage_events_agent, usage_events_actor).
 */
export const unpricedRows = (
  db: Queryable,
  of: { project_id: string; agent_id: string | null; actor_id: string | null; since: string },
): Promise<readonly UnpricedRow[]> =>
  db.any(sql.type(UnpricedRow)`
    select distinct e.provider, e.model, c.component from (
      select e.provider, e.model, e.components from usage_events e
      where e.project_id = ${of.project_id} and e.created_at >= ${of.since}::timestamptz and ${isModelUse}
        ${of.agent_id === null ? sql.fragment`` : sql.fragment`and e.agent_id = ${of.agent_id}`}
        ${of.actor_id === null ? sql.fragment`` : sql.fragment`and e.actor_id = ${of.actor_id}`}
      order by e.created_at desc limit ${SEARCHED}
    ) e, jsonb_to_recordset(e.components) as c (component text, quantity numeric, billable boolean, unit_price numeric)
    where c.billable and c.quantity > 0 and c.unit_price is null
    order by 1, 2, 3 limit ${NAMED}`)

const removed = sql.type(z.object({ count: z.int() }))

/** Folds what concurrent transactions added up apart, hour by hour, so that reading does not get slower. Returns how many rows went. */
export async function compactSums(
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping: AbortSignal,
): Promise<number> {
  const now = Math.floor(clock.now().getTime() / HOUR_MS) * HOUR_MS
  let gone = 0
  for (let age = SETTLED_HOURS; age < FOLDED_DAYS * 24 && !stopping.aborted; age++)
    gone += await pool.oneFirst(
      removed`select fold_usage(${new Date(now - age * HOUR_MS).toISOString()}::timestamptz) as count`,
    )
  return gone
}

/** Deletes sums of hours that no window reaches back to (index usage_sums_hour). Returns how many. */
export const pruneSums = (
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping: AbortSignal,
): Promise<number> => {
  const before = new Date(clock.now().getTime() - KEPT_DAYS * DAY_MS)
  return deleteInBatches(
    async limit =>
      (
        await pool.query(voidStatement`
          delete from usage_sums where (project_id, scope, ref, hour, meter_type, shard) in (
            select project_id, scope, ref, hour, meter_type, shard from usage_sums where hour < ${before.toISOString()}::timestamptz order by hour limit ${limit})`)
      ).rowCount,
    stopping,
  )
}
