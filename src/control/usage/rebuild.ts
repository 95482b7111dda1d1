import { z } from 'zod'
import { allOf, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { foldProject } from './folds.ts'

const Day = z.object({ project_id: z.string(), day: z.string() })

/** Lists the UTC days with events or sums, by project. */
export const usageDays = (
  db: Queryable,
  { project, from, to }: { project: string | null; from: Date | null; to: Date | null },
): Promise<readonly z.output<typeof Day>[]> =>
  db.any(sql.type(Day)`
    select distinct u.project_id, to_char(u.at at time zone 'UTC', 'YYYY-MM-DD') as day from (
      select project_id, created_at as at from usage_events union all select project_id, hour from usage_rollups) u
    where ${allOf([
      project !== null && sql.fragment`u.project_id = ${project}`,
      from && sql.fragment`u.at >= ${from.toISOString()}::timestamptz`,
      to && sql.fragment`u.at <= ${to.toISOString()}::timestamptz`,
    ])}
    order by 1, 2`)

/** A range of whole hours of a project. */
type Span = { project_id: string; from: Date; to: Date }

/** Start of the sums that pruning has not deleted. */
const RETAINED_SINCE = sql.fragment`now() - interval '39 days'`

/**
 * Whether the sums of a span match its events, in one snapshot: usage_sums by hour, project, agent and actor,
 * usage_rollups by hour and report dimensions, and the usage of runs with events in the span.
 */
export const sumsMatchEvents = async (db: Queryable, { project_id, from, to }: Span): Promise<boolean> =>
  !(await db.exists(sql.type(z.object({ wrong: z.int() }))`
    with events as (
      select e.*, date_trunc('hour', e.created_at, 'UTC') as hour from usage_events e
      where e.project_id = ${project_id} and e.created_at >= ${from.toISOString()}::timestamptz and e.created_at < ${to.toISOString()}::timestamptz),
    sums as (
      select scope, ref, hour, meter_type, sum(events) as events, sum(tokens) as tokens, sum(cost_usd) as cost, sum(metered) as metered, sum(priced) as priced,
        sum(unpriced) as unpriced
      from usage_sums where project_id = ${project_id} and hour >= greatest(${from.toISOString()}::timestamptz, ${RETAINED_SINCE}) and hour < ${to.toISOString()}::timestamptz
      group by 1, 2, 3, 4),
    should as (
      select r.scope, r.ref, e.hour, e.meter_type, sum(e.event_count)::numeric as events, sum(e.tokens) as tokens, coalesce(sum(e.cost_usd), 0) as cost,
        coalesce(sum(e.event_count) filter (where m.used), 0)::numeric as metered,
        coalesce(sum(e.event_count) filter (where m.used and e.cost_usd is not null), 0)::numeric as priced,
        coalesce(sum(e.event_count) filter (where m.used and usage_unpriced(e.components)), 0)::numeric as unpriced
      from events e cross join lateral (values ('project', ''), ('agent', e.agent_id), ('actor', e.actor_id)) r (scope, ref)
        cross join lateral (select e.meter_type = 'llm_tokens' and e.source is distinct from 'embedding' as used) m
      where r.ref is not null and e.hour >= ${RETAINED_SINCE}
      group by 1, 2, 3, 4),
    rolled as (
      select hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, sum(events) as events, sum(quantity) as quantity,
        sum(cost_usd) as cost, sum(input_tokens) as input, sum(cached_tokens) as cached, sum(cache_write_tokens) as written, sum(output_tokens) as output,
        sum(reasoning_tokens) as reasoning, sum(unpriced_quantity) as unpriced, sum(unpriced_input_tokens) as unpriced_input,
        sum(unpriced_cached_tokens) as unpriced_cached, sum(unpriced_cache_write_tokens) as unpriced_written,
        sum(unpriced_output_tokens) as unpriced_output
      from usage_rollups where project_id = ${project_id} and hour >= ${from.toISOString()}::timestamptz and hour < ${to.toISOString()}::timestamptz
      group by 1, 2, 3, 4, 5, 6, 7, 8, 9),
    should_roll as (
      select e.hour, e.meter_type, e.model, coalesce(e.ai_provider_id, ''), coalesce(e.agent_id, ''), coalesce(e.source, ''), coalesce(e.publisher_project_id, ''),
        p.component, p.unit, sum(p.events), sum(p.quantity), sum(p.cost_usd), sum(p.input_tokens), sum(p.cached_tokens), sum(p.cache_write_tokens),
        sum(p.output_tokens), sum(p.reasoning_tokens), sum(p.unpriced_quantity), sum(p.unpriced_input_tokens), sum(p.unpriced_cached_tokens),
        sum(p.unpriced_cache_write_tokens), sum(p.unpriced_output_tokens)
      from events e cross join lateral usage_parts(e.components, e.cost_usd, e.event_count) p group by 1, 2, 3, 4, 5, 6, 7, 8, 9),
    wrong as (
      (table sums except table should) union all (table should except table sums)),
    wrongly as (
      (table rolled except table should_roll) union all (table should_roll except table rolled)),
    wrong_runs as (
      select from (select distinct orchestration_run_id as id from events) r join folded_run_usage f on f.run_id = r.id
        cross join lateral (
          select sum(q.events) as events, sum(q.tokens) as tokens, sum(q.cost_usd) as cost_usd, sum(q.metered) as metered, sum(q.priced) as priced,
            sum(q.tool_calls) as tool_calls, sum(q.input_tokens) as input_tokens, sum(q.cached_tokens) as cached_tokens,
            sum(q.cache_write_tokens) as cache_write_tokens, sum(q.output_tokens) as output_tokens, sum(q.reasoning_tokens) as reasoning_tokens
          from usage_events e cross join lateral usage_figures(e) q
          where e.orchestration_run_id = f.run_id and not exists (
            select from unfolded_usage u where u.project_id = f.project_id and u.run_id = f.run_id and u.event_id = e.id)) s
      where (f.events, f.tokens, f.cost_usd, f.metered, f.priced, f.tool_calls, f.input_tokens, f.cached_tokens, f.cache_write_tokens,
          f.output_tokens, f.reasoning_tokens)
        is distinct from (s.events, s.tokens, s.cost_usd, s.metered, s.priced, s.tool_calls, s.input_tokens, s.cached_tokens, s.cache_write_tokens,
          s.output_tokens, s.reasoning_tokens))
    select 1 as wrong from wrong union all select 1 from wrongly union all select 1 from wrong_runs limit 1`))

/**
 * Rebuilds the sums of a span, and deletes the usage of its runs, which is made again from their events. Usage that is not folded is folded before; a caller folds most of it before the transaction. The
 * table lock blocks writers of all projects; otherwise an event could be counted twice or not at all.
 * @throws Error if the project is being deleted
 */
export async function rebuildSums(tx: Queryable, { project_id, from, to }: Span): Promise<void> {
  const [start, end] = [from.toISOString(), to.toISOString()]
  await tx.query(voidStatement`select from pg_advisory_xact_lock(usage_fold_lock(${project_id}))`)
  await tx.query(voidStatement`lock table usage_events in share row exclusive mode`)
  if (!(await foldProject(tx, project_id))) throw new Error(`project ${project_id} is being deleted`)
  for (const table of ['folded_usage_sums', 'folded_usage_rollups'])
    await tx.query(voidStatement`
      delete from ${sql.identifier([table])} where project_id = ${project_id} and hour >= ${start}::timestamptz and hour < ${end}::timestamptz`)
  await tx.query(voidStatement`
    delete from folded_run_usage where run_id in (
      select orchestration_run_id from usage_events
      where project_id = ${project_id} and created_at >= ${start}::timestamptz and created_at < ${end}::timestamptz)`)
  await tx.query(sql.type(z.object({ added: z.unknown() }))`
    select add_usage(array_agg(e)) as added from usage_events e
    where e.project_id = ${project_id} and e.created_at >= ${start}::timestamptz and e.created_at < ${end}::timestamptz`)
}
