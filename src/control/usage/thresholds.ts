import { z } from 'zod'
import type { Operation } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { countStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { queueMessage, workQueue } from '#core/queues/queue.ts'
import { resource } from '#core/resources/resource.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { usageChannel } from './price-cache.ts'
import { usageSince } from './sums.ts'
import { thresholdQueue } from './threshold-queue.ts'
import { type ThresholdRow, thresholdKind, UsageThresholdInput } from './thresholds-model.ts'

const crossedRow = sql.type(thresholdKind.row.extend({ observed_value: z.number() }))

/**
 * Compares the usage of a project with its thresholds in one statement: reached thresholds are marked as fired, and
 * rolling thresholds below 90 % are rearmed. Returns the changed rows, so that only one of several concurrent
 * comparisons emits the event. A window is summed once, and only if a threshold is waiting for it.
 */
const compareThresholds = (
  db: Queryable,
  projectId: string,
  { month, monthStart, dayStart }: { month: string; monthStart: Date; dayStart: Date },
) =>
  db.any(crossedRow`
    with waiting as (
      select id, metric, "window", threshold, armed from usage_thresholds
      where project_id = ${projectId} and ("window" = 'rolling_24h' or fired_window_key is distinct from ${month})),
    summed as (
      select w."window", s.tokens, s.cost_usd from (
        select distinct "window", case "window" when 'calendar_month' then ${monthStart.toISOString()}::timestamptz
          else ${dayStart.toISOString()}::timestamptz end as since from waiting) w
      cross join lateral (${usageSince({
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

/**
 * Returns the number of thresholds of a project and locks it until the transaction ends (index
 * usage_thresholds_project).
 */
const countThresholds = async (tx: Queryable, projectId: string): Promise<number> => {
  await tx.query(
    voidStatement`select from pg_advisory_xact_lock(hashtextextended('usage thresholds ' || ${projectId}, 0))`,
  )
  return tx.oneFirst(countStatement`select count(*) as count from usage_thresholds where project_id = ${projectId}`)
}

const projectRow = z.object({ project_id: z.string() })

/** Lists projects with fired rolling thresholds that are not rearmed (index usage_thresholds_disarmed). */
const listProjectsToRearm = (db: Queryable): Promise<readonly string[]> =>
  db.anyFirst(sql.type(projectRow)`
    select distinct project_id from usage_thresholds where not armed order by project_id`)

const thresholds = resource(thresholdKind, {
  path: '/usage/thresholds',
  tag: 'Usage',
  param: 'threshold_id',
})

/** Most thresholds of a project; a single usage event may reach all of them in one transaction. */
const MAX_THRESHOLDS = 200

const actions = { read: 'usage:ListThresholds', write: 'usage:ManageThresholds' }

export const thresholdOperations: Operation[] = [
  thresholds.create({
    summary: 'Create a usage threshold',
    description:
      'Emits `usage_thresholds.crossed` when usage reaches the value: once per calendar month, or for `rolling_24h` again after usage fell below 90 % of the value. Thresholds cannot be updated; delete and recreate them.',
    action: actions.write,
    body: UsageThresholdInput,
    async make({ tx, body, project }) {
      if ((await countThresholds(tx, project)) >= MAX_THRESHOLDS)
        raiseInvalid({
          code: 'LIMIT_REACHED',
          path: '',
          message: `Project already has the maximum of ${MAX_THRESHOLDS} thresholds`,
        })
      const row = await thresholdKind.insert(tx, { ...body, project_id: project })
      invalidateOnCommit(tx, usageChannel, project)
      return row
    },
  }),
  // usage_thresholds_project serves the order.
  thresholds.list({ action: actions.read }),
  thresholds.get({ action: actions.read }),
  thresholds.remove({
    action: actions.write,
    removed: (row, { tx }) => invalidateOnCommit(tx, usageChannel, row.project_id),
  }),
]

const DAY_MS = 86_400_000

/** Compares the usage of a project with its thresholds and emits events for reached ones. */
async function checkThresholds(services: Services, project_id: string): Promise<void> {
  const now = services.clock.now()
  const month = now.toISOString().slice(0, 7)
  await services.write(async tx => {
    const changed = await compareThresholds(tx, project_id, {
      month,
      monthStart: new Date(`${month}-01T00:00:00Z`),
      dayStart: new Date(now.getTime() - DAY_MS),
    })
    for (const { observed_value, ...row } of changed) {
      if (row.window === 'rolling_24h' && row.armed) continue
      tx.emit(thresholdKind, 'crossed', row as ThresholdRow, {
        extra: { threshold_id: row.id, window_key: row.window === 'rolling_24h' ? null : month, observed_value },
      })
    }
  })
}

/** Periodic check of fired rolling thresholds: their value falls without new usage. */
const rearmQueue = workQueue('usage.rearm_thresholds', {
  message: z.object({}),
  concern: 'delivery',
  retry: { limit: 0 },
})

export const thresholdHandlers = [
  handler(thresholdQueue, {}, ({ project_id }, { services }) => checkThresholds(services, project_id)),
  handler(rearmQueue, { concurrency: 1 }, async (_message, { services }) => {
    const projects = await listProjectsToRearm(services.pool)
    await services.queues.send(projects.map(project_id => queueMessage(thresholdQueue, { project_id })))
  }),
]

const REARM_SECONDS = 60

export const thresholdSchedules = [schedule('usage thresholds', REARM_SECONDS, rearmQueue, {})]
