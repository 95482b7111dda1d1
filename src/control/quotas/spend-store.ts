import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'
import { type Fullest, fullestActors, SumsRow, usedSince } from '../usage/sums.ts'
import type { QuotaRow } from './model.ts'
import { measurementColumns, QuotaMeasurement } from './store.ts'
import { WINDOWS, windowOf } from './windows.ts'

/** Whose tokens and money work is about to use. */
export type SpendScope = { project_id: string; agent_id: string | null; actor_id: string | null }

/**
 * How much work is under way whose usage is not written yet, as an expression: of a project, of one of its agents or
 * actors where the columns name one.
 */
export const activeWork =
  extensionPoint<(of: { project: Fragment; agent: Fragment; actor: Fragment }) => Fragment>('work under way')

const Spend = QuotaMeasurement.extend({
  ...SumsRow.shape,
  on_unpriced: z.enum(['block', 'allow']).nullable(),
  reserve: z.boolean(),
  under_way: z.int(),
  /** What one of the last turns used, in the metric of the quota; null when there is none. */
  mean: z.number().nullable(),
})
/** A tokens or cost_usd quota with what was used in its running window and, where it reserves, what is under way. */
export type Spend = z.output<typeof Spend>

/** When the running window of a quota `q` began. */
const startOf = (now: Date): Fragment =>
  sql.fragment`(case q."window" ${sql.join(
    WINDOWS.map(name => sql.fragment`when ${name} then ${windowOf(name, now).start}::timestamptz`),
    sql.fragment` `,
  )} end)`

/** How usage_sums names what a quota `q` counts; a quota of every agent counts the project. */
const usedBy = (actor: Fragment, now: Date): Fragment =>
  usedSince({
    project: sql.fragment`q.project_id`,
    scope: sql.fragment`case when q.scope = 'agent' and q.scope_ref is null then 'project' else q.scope end`,
    ref: sql.fragment`case q.scope when 'project' then '' when 'agent' then coalesce(q.scope_ref, '') else coalesce(q.scope_ref, ${actor}) end`,
    since: startOf(now),
    meter: sql.fragment`q.meter_type`,
  })

/** How many of the last turns say what the next one is expected to use, and events that are searched for them. */
const SAMPLE = 20
const SEARCHED = 1000

/**
 * The tokens and cost_usd quotas that work counts in, measured, in one statement (indexes quotas_identity, usage_sums_pkey,
 * usage_events_project).
 */
export const measureSpend = (db: Queryable, spender: SpendScope, now: Date): Promise<readonly Spend[]> => {
  const { project_id, agent_id, actor_id } = spender
  const actor = sql.fragment`${actor_id}::text`
  const agentOf = sql.fragment`case when q.scope = 'agent' then q.scope_ref end`
  const actorOf = sql.fragment`case when q.scope = 'actor' then coalesce(q.scope_ref, ${actor}) end`
  const counts = activeWork
    .all()
    .map(count => count({ project: sql.fragment`q.project_id`, agent: agentOf, actor: actorOf }))
  return db.any(sql.type(Spend)`
    select ${measurementColumns}, q.on_unpriced, q.reserve, u.*, coalesce(r.under_way, 0) as under_way, r.mean
    from quotas q cross join lateral (${usedBy(actor, now)}) u
    left join lateral (
      select ${counts.length === 0 ? sql.fragment`0` : sql.join(counts, sql.fragment` + `)} as under_way, (
        select avg(case q.metric when 'tokens' then l.tokens else coalesce(l.cost_usd, 0) end) from (
          select e.* from (
            select * from usage_events e
            where e.project_id = q.project_id
              and (${agentOf} is null or e.agent_id = ${agentOf}) and (${actorOf} is null or e.actor_id = ${actorOf})
            order by e.created_at desc, e.id desc limit ${SEARCHED}
          ) e where e.meter_type = 'llm_tokens' and e.generation_id is not null
          order by e.created_at desc, e.id desc limit ${SAMPLE}
        ) l
      ) as mean
    ) r on q.reserve
    where q.project_id = ${project_id} and q.metric in ('tokens', 'cost_usd') and (
      q.scope = 'project'
      or q.scope = 'agent' and ${agent_id}::text is not null and coalesce(q.scope_ref, ${agent_id}) = ${agent_id}
      or q.scope = 'actor' and ${actor}::text is not null and coalesce(q.scope_ref, ${actor}) = ${actor})
    order by q.id`)
}

/**
 * Makes the starts of a project's work follow each other until the transaction ends, so that each sees the one before it
 * among what is under way.
 */
export const serializeStarts = (db: Queryable, projectId: string): Promise<unknown> =>
  db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended('quota starts ' || ${projectId}, 0))`)

const used = sql.type(SumsRow)

/** What a tokens or cost_usd quota has counted in its running window. */
export async function measureUsage(db: Queryable, quota: QuotaRow, now: Date): Promise<number> {
  const { tokens, cost_usd } = await db.one(used`
    select u.* from quotas q cross join lateral (${usedBy(sql.fragment`null::text`, now)}) u where q.id = ${quota.id}`)
  return quota.metric === 'tokens' ? tokens : cost_usd
}

/** Actors that the usage of a quota names. */
const NAMED = 10

/** The actors that have used most of their budgets in the running window of a quota with one for each. */
export const fullestIn = (
  db: Queryable,
  { project_id, metric, meter_type, window }: QuotaRow,
  now: Date,
): Promise<readonly Fullest[]> =>
  fullestActors(
    db,
    { project_id, metric: metric as 'tokens' | 'cost_usd', since: windowOf(window, now).start, meter: meter_type },
    NAMED,
  )
