import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

/** Exceeds every measured window. */
const RETENTION_DAYS = 40

/** Usage of a project, agent or actor. `metered`, `priced` and `unpriced` count model calls except embeddings. */
export const SumsRow = z.object({
  events: z.int(),
  tokens: z.int(),
  cost_usd: z.number(),
  metered: z.int(),
  priced: z.int(),
  unpriced: z.int(),
})
export type SumsRow = z.output<typeof SumsRow>

/** Number of model calls, all unpriced, from which the cost counts as unknown. */
const MIN_UNPRICED_CALLS = 3

/** Whether no model call has a price, so that the cost is unknown. Partly priced usage has a cost. */
export const isFullyUnpriced = ({ metered, priced }: Pick<SumsRow, 'metered' | 'priced'>): boolean =>
  metered >= MIN_UNPRICED_CALLS && priced === 0

/**
 * Returns a select of one SumsRow, the usage since a time. Whole hours come from usage_sums, the part before the first
 * whole hour from events (indexes folded_usage_sums_pkey, unfolded_usage_pkey, usage_events_project).
 * @param of scope and ref as in usage_sums; a null `meter` selects every meter
 */
export function usageSince(of: {
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
      select e.event_count, e.tokens, e.cost_usd, m.used, case when e.cost_usd is not null then m.used else 0 end, case when usage_unpriced(e.components) then m.used else 0 end
      from usage_events e cross join lateral (select case when ${isModelUse} then e.event_count else 0 end as used) m
      where e.project_id = ${project} and e.created_at >= ${since} and e.created_at < ${hour}
        and case ${scope} when 'project' then true when 'agent' then e.agent_id = ${ref} else e.actor_id = ${ref} end
        and e.meter_type = coalesce(${meter}, e.meter_type)
    ) u`
}

const ActorUsage = z.object({ actor_id: z.string(), used: z.number() })
export type ActorUsage = z.output<typeof ActorUsage>

/**
 * Lists the actors of a project with the highest usage since a time, descending (indexes folded_usage_sums_pkey,
 * usage_events_project). Reads one row per actor and hour.
 */
export const listActorsByUsage = (
  db: Queryable,
  of: { project_id: string; metric: 'tokens' | 'cost_usd'; since: string; meter: string | null },
  limit: number,
): Promise<readonly ActorUsage[]> => {
  const since = sql.fragment`${of.since}::timestamptz`
  const hour = sql.fragment`date_trunc('hour', ${since} + interval '3599999 milliseconds', 'UTC')`
  const value = sql.identifier([of.metric])
  return db.any(sql.type(ActorUsage)`
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

/** Condition for an event `e` of a model call that is not an embedding. */
const isModelUse = sql.fragment`e.meter_type = 'llm_tokens' and e.source is distinct from 'embedding'`

/** Returns the usage of a project since each of several times, in the given order, in one statement. */
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
    cross join lateral (${usageSince({
      project: sql.fragment`${projectId}`,
      scope: sql.fragment`'project'`,
      ref: sql.fragment`''`,
      since: sql.fragment`w.since`,
      meter: sql.fragment`${meter}::text`,
    })}) u order by w.n`)

const runUsageRow = sql.type(
  SumsRow.pick({ tokens: true, cost_usd: true, metered: true, priced: true }).extend({ tool_calls: z.int() }),
)

/** Returns the usage of a run, without runs that it started (function run_usage). */
export const usedByRun = (
  db: Queryable,
  projectId: string,
  runId: string,
): Promise<Pick<SumsRow, 'tokens' | 'cost_usd' | 'metered' | 'priced'> & { tool_calls: number }> =>
  db.one(runUsageRow`
    select coalesce(sum(u.tokens), 0)::int8 as tokens, coalesce(sum(u.cost_usd), 0) as cost_usd,
      coalesce(sum(u.metered), 0)::int8 as metered, coalesce(sum(u.priced), 0)::int8 as priced,
      coalesce(sum(u.tool_calls), 0)::int8 as tool_calls
    from run_usage(${runId}) u where u.project_id = ${projectId}`)

const UnpricedRow = z.object({ provider: z.string(), model: z.string(), component: z.string() })
export type UnpricedRow = z.output<typeof UnpricedRow>

/** Number of recent events searched for unpriced components, and of returned rows. */
const MAX_SEARCHED = 10_000
const MAX_ROWS = 10

/**
 * Lists up to ten components without a price among the newest 10,000 events since a time, as provider, model and
 * component (indexes usage_events_project, usage_events_agent, usage_events_actor).
 */
export const listUnpricedRows = (
  db: Queryable,
  of: { project_id: string; agent_id: string | null; actor_id: string | null; since: string },
): Promise<readonly UnpricedRow[]> =>
  db.any(sql.type(UnpricedRow)`
    select distinct e.provider, e.model, c.component from (
      select e.provider, e.model, e.components from usage_events e
      where e.project_id = ${of.project_id} and e.created_at >= ${of.since}::timestamptz and ${isModelUse}
        ${of.agent_id === null ? sql.fragment`` : sql.fragment`and e.agent_id = ${of.agent_id}`}
        ${of.actor_id === null ? sql.fragment`` : sql.fragment`and e.actor_id = ${of.actor_id}`}
      order by e.created_at desc limit ${MAX_SEARCHED}
    ) e, jsonb_to_recordset(e.components) as c (component text, quantity numeric, billable boolean, unit_price numeric)
    where c.billable and c.quantity > 0 and c.unit_price is null
    order by 1, 2, 3 limit ${MAX_ROWS}`)

/** Deletes sums older than every window (index folded_usage_sums_hour). Returns their number. */
export const pruneSums = (
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping: AbortSignal,
): Promise<number> => {
  const before = new Date(clock.now().getTime() - RETENTION_DAYS * DAY_MS)
  return deleteInBatches(
    async limit =>
      (
        await pool.query(voidStatement`
          delete from folded_usage_sums where (project_id, scope, ref, hour, meter_type, shard) in (
            select project_id, scope, ref, hour, meter_type, shard from folded_usage_sums where hour < ${before.toISOString()}::timestamptz order by hour limit ${limit})`)
      ).rowCount,
    stopping,
  )
}
