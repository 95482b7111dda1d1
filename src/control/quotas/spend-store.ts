import { z } from 'zod'
import { extensionPoint } from '#core/base/declarations.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type ActorUsage, listActorsByUsage, SumsRow, usageSince } from '../usage/sums.ts'
import type { QuotaRow } from './model.ts'
import { measurementColumns, QuotaMeasurement } from './store.ts'
import { QUOTA_WINDOWS, windowOf } from './windows.ts'

/** Project, agent and actor whose quotas a piece of work counts in. */
export type SpendScope = { project_id: string; agent_id: string | null; actor_id: string | null }

/**
 * Expressions for the number of active turns whose usage is not written yet, of a project, agent or actor; a null agent
 * or actor matches all.
 */
export const activeWork = extensionPoint<(of: { project: Fragment; agent: Fragment; actor: Fragment }) => Fragment>({
  name: 'active work',
  folder: 'control/quotas',
  description: 'Gives the SQL of the number of active turns whose usage is not written yet, for budgets',
})

const MeasuredSpend = QuotaMeasurement.extend({
  ...SumsRow.shape,
  on_unpriced: z.enum(['block', 'allow']).nullable(),
  reserve: z.boolean(),
  under_way: z.int(),
  /** Mean usage of the last turns in the metric of the quota; null without turns. */
  mean: z.number().nullable(),
})
/** A tokens or cost_usd quota with the usage of its current window and, if it reserves, the number of active turns. */
export type MeasuredSpend = z.output<typeof MeasuredSpend>

/** Returns the start of the current window of a quota `q`. */
const windowStart = (now: Date): Fragment =>
  sql.fragment`(case q."window" ${sql.join(
    QUOTA_WINDOWS.map(name => sql.fragment`when ${name} then ${windowOf(name, now).start}::timestamptz`),
    sql.fragment` `,
  )} end)`

/** Returns a select of the usage that a quota `q` counts; a quota for all agents counts the project. */
const quotaUsage = (actor: Fragment, now: Date): Fragment =>
  usageSince({
    project: sql.fragment`q.project_id`,
    scope: sql.fragment`case when q.scope = 'agent' and q.scope_ref is null then 'project' else q.scope end`,
    ref: sql.fragment`case q.scope when 'project' then '' when 'agent' then coalesce(q.scope_ref, '') else coalesce(q.scope_ref, ${actor}) end`,
    since: windowStart(now),
    meter: sql.fragment`q.meter_type`,
  })

/** Number of recent turns whose mean is the expected usage, and of recent events searched for them. */
const SAMPLE_TURNS = 20
const MAX_SEARCHED = 1000

/**
 * Measures the tokens and cost_usd quotas of a scope (indexes quotas_identity, folded_usage_sums_pkey, usage_events_project).
 */
export const measureSpend = (db: Queryable, scope: SpendScope, now: Date): Promise<readonly MeasuredSpend[]> => {
  const { project_id, agent_id, actor_id } = scope
  const actor = sql.fragment`${actor_id}::text`
  const agentOf = sql.fragment`case when q.scope = 'agent' then q.scope_ref end`
  const actorOf = sql.fragment`case when q.scope = 'actor' then coalesce(q.scope_ref, ${actor}) end`
  const counts = activeWork
    .all()
    .map(count => count({ project: sql.fragment`q.project_id`, agent: agentOf, actor: actorOf }))
  return db.any(sql.type(MeasuredSpend)`
    select ${measurementColumns}, q.on_unpriced, q.reserve, u.*, coalesce(r.under_way, 0) as under_way, r.mean
    from quotas q cross join lateral (${quotaUsage(actor, now)}) u
    left join lateral (
      select ${counts.length === 0 ? sql.fragment`0` : sql.join(counts, sql.fragment` + `)} as under_way, (
        select avg(case q.metric when 'tokens' then l.tokens else coalesce(l.cost_usd, 0) end) from (
          select e.* from (
            select * from usage_events e
            where e.project_id = q.project_id
              and (${agentOf} is null or e.agent_id = ${agentOf}) and (${actorOf} is null or e.actor_id = ${actorOf})
            order by e.created_at desc, e.id desc limit ${MAX_SEARCHED}
          ) e where e.meter_type = 'llm_tokens' and e.generation_id is not null
          order by e.created_at desc, e.id desc limit ${SAMPLE_TURNS}
        ) l
      ) as mean
    ) r on q.reserve
    where q.project_id = ${project_id} and q.metric in ('tokens', 'cost_usd') and (
      q.scope = 'project'
      or q.scope = 'agent' and ${agent_id}::text is not null and coalesce(q.scope_ref, ${agent_id}) = ${agent_id}
      or q.scope = 'actor' and ${actor}::text is not null and coalesce(q.scope_ref, ${actor}) = ${actor})
    order by q.id`)
}

/** Serializes starts in a project until the transaction ends, so that each counts the previous one as active. */
export const serializeStarts = (db: Queryable, projectId: string): Promise<unknown> =>
  db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended('quota starts ' || ${projectId}, 0))`)

const sumsRow = sql.type(SumsRow)

/** Returns the usage of a tokens or cost_usd quota in its current window. */
export async function measureUsage(db: Queryable, quota: QuotaRow, now: Date): Promise<number> {
  const { tokens, cost_usd } = await db.one(sumsRow`
    select u.* from quotas q cross join lateral (${quotaUsage(sql.fragment`null::text`, now)}) u where q.id = ${quota.id}`)
  return quota.metric === 'tokens' ? tokens : cost_usd
}

/** Number of actors in the usage of a quota. */
const MAX_ACTORS = 10

/** Lists the actors with the highest usage in the current window of a quota with one budget per actor. */
export const listTopActors = (
  db: Queryable,
  { project_id, metric, meter_type, window }: QuotaRow,
  now: Date,
): Promise<readonly ActorUsage[]> =>
  listActorsByUsage(
    db,
    { project_id, metric: metric as 'tokens' | 'cost_usd', since: windowOf(window, now).start, meter: meter_type },
    MAX_ACTORS,
  )
