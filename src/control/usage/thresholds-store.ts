import { z } from 'zod'
import { countStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { usedSince } from './sums.ts'
import { thresholdKind } from './thresholds-model.ts'

const Crossed = thresholdKind.row.extend({ observed_value: z.number() })
const crossed = sql.type(Crossed)

/**
 * Compares the usage of a project with its thresholds and notes what follows, in one statement: those that are reached and
 * have not fired fire, and rolling ones that have fallen below 90 % are armed again. Returns those that fire now, so that of
 * several who compare at once one announces each. A window is summed once, and only where a threshold waits for it.
 */
export const compareThresholds = (
  db: Queryable,
  projectId: string,
  { month, monthStart, dayStart }: { month: string; monthStart: Date; dayStart: Date },
) =>
  db.any(crossed`
    with waiting as (
      select id, metric, "window", threshold, armed from usage_thresholds
      where project_id = ${projectId} and ("window" = 'rolling_24h' or fired_window_key is distinct from ${month})),
    summed as (
      select w."window", s.tokens, s.cost_usd from (
        select distinct "window", case "window" when 'calendar_month' then ${monthStart.toISOString()}::timestamptz
          else ${dayStart.toISOString()}::timestamptz end as since from waiting) w
      cross join lateral (${usedSince({
        project: sql.fragment`${projectId}`,
        scope: sql.fragment`'project'`,
        ref: sql.fragment`''`,
        since: sql.fragment`w.since`,
        meter: sql.fragment`null::text`,
      })}) s),
    compared as (
      select w.id, w.armed, w.threshold, case w.metric when 'tokens' then s.tokens else s.cost_usd end as value
      from waiting w join summed s using ("window"))
    update usage_thresholds t set
      armed = t."window" = 'calendar_month' or c.value < c.threshold,
      last_fired_at = case when c.value >= c.threshold then now() else t.last_fired_at end,
      fired_window_key = case when c.value >= c.threshold and t."window" = 'calendar_month' then ${month} else t.fired_window_key end
    from compared c
    where t.id = c.id and case
      when t."window" = 'calendar_month' then c.value >= c.threshold and t.fired_window_key is distinct from ${month}
      when t.armed then c.value >= c.threshold
      else c.value < c.threshold * 0.9 end
    returning ${thresholdKind.columns}, c.value as observed_value`)

/** How many thresholds a project has; until the transaction ends nobody else counts them. Index usage_thresholds_project. */
export const countThresholds = async (tx: Queryable, projectId: string): Promise<number> => {
  await tx.query(
    voidStatement`select from pg_advisory_xact_lock(hashtextextended('usage thresholds ' || ${projectId}, 0))`,
  )
  return tx.oneFirst(countStatement`select count(*) as count from usage_thresholds where project_id = ${projectId}`)
}

const Watching = z.object({ project_id: z.string() })

/** Projects with rolling thresholds that have fired and are not armed again (index usage_thresholds_disarmed). */
export const projectsToRearm = (db: Queryable): Promise<readonly string[]> =>
  db.anyFirst(sql.type(Watching)`
    select distinct project_id from usage_thresholds where not armed order by project_id`)
