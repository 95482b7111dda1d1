import { z } from 'zod'
import { recordActivityInTx } from '#control/activity/record.ts'
import { newId } from '#core/base/ids.ts'
import { runLoopOnce } from '#core/base/loop.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { BackgroundTask } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { nextOccurrence } from './cron.ts'
import { wakeFiring } from './fire.ts'
import { firingKind, triggerKind } from './model.ts'
import { insertFirings, type NewFiring } from './store.ts'

/** Due schedules per transaction. */
const BATCH = 200

/** Firings per statement. Each may have an input of 1 MiB. */
const INSERT_BATCH = 20

/** Delay of the next query if other workers have locked all due schedules. */
const LOCKED_RETRY_MS = 100

const delayRow = sql.type(z.object({ ms: z.number().nullable() }))

/**
 * Returns the milliseconds until a schedule is due, by the database clock; null without any. Index triggers_due, one
 * probe.
 */
const millisecondsUntilDue = (db: Queryable): Promise<number | null> =>
  db.oneFirst(delayRow`
    select (extract(epoch from min(next_fire_at) - clock_timestamp()) * 1000)::float8 as ms
    from triggers where next_fire_at is not null`)

const dueScheduleRow = sql.type(
  z.object({ ...triggerKind.row.shape, now: z.string(), paused: z.boolean(), busy: z.boolean() }),
)

/** Locks due schedules, skipping those that other workers have locked. Indexes triggers_due, trigger_firings_live. */
const lockDueSchedules = (db: Queryable) =>
  db.any(dueScheduleRow`
    select ${triggerKind.columns}, now() as now,
      (select p.paused_at is not null from projects p where p.id = t.project_id) as paused,
      t.overlap_policy = 'skip' and exists (
        select from trigger_firings f where f.trigger_id = t.id and f.state in ('queued', 'running', 'started')) as busy
    from triggers t where t.next_fire_at <= now() order by t.next_fire_at limit ${BATCH}
    for update of t skip locked`)

const setNextFireTimes = (db: Queryable, next: readonly { id: string; at: string | null }[]) =>
  db.query(voidStatement`
    update triggers t set next_fire_at = n.at
    from json_to_recordset(${JSON.stringify(next)}::json) as n (id text, at timestamptz) where t.id = n.id`)

/**
 * Fires due schedules, each due time exactly once: firing, message and next due time are written in one transaction
 * that locks the trigger. All missed occurrences become one firing; schedules of paused projects do not fire. Inputs are
 * mapped where they are fired: nothing of a tenant is evaluated here. Returns the number of due schedules.
 */
async function fireDueSchedules(services: Services): Promise<number> {
  return services.write(async tx => {
    const triggers = await lockDueSchedules(tx)
    if (triggers.length === 0) return 0
    const firings: NewFiring[] = []
    const next: { id: string; at: string | null }[] = []
    for (const { now, paused, busy, ...trigger } of triggers) {
      const { id, name, project_id, target_type, cron, timezone, misfire_policy } = trigger
      const scheduled_for = new Date(trigger.next_fire_at as string).toISOString()
      const following = nextOccurrence(cron as string, timezone, new Date(scheduled_for))
      const misfired = following <= new Date(now)
      const at = (misfired ? nextOccurrence(cron as string, timezone, new Date(now)) : following).toISOString()
      next.push({ id, at })
      if (paused || busy || (misfired && misfire_policy === 'skip')) continue
      const firing: NewFiring = {
        id: newId(firingKind.prefix),
        project_id,
        trigger_id: id,
        source: 'schedule',
        target_type,
        input: trigger.input ?? {},
        unmapped: trigger.input_mapping !== null,
        idempotency_key: `${id}:${scheduled_for}`,
        causation_chain: [],
        scheduled_for,
      }
      firings.push(firing)
      recordActivityInTx(tx, {
        project_id,
        kind: 'schedule_fired',
        summary: `${name} fired`,
        detail: { trigger_firing_id: firing.id, scheduled_for },
        ref_id: id,
      })
    }
    for (let at = 0; at < firings.length; at += INSERT_BATCH)
      await insertFirings(tx, firings.slice(at, at + INSERT_BATCH))
    for (const firing of firings) wakeFiring(tx, firing)
    await setNextFireTimes(tx, next)
    return triggers.length
  })
}

/**
 * Moves the schedules of a resumed project to their next occurrence, dropping those missed while paused. Index
 * triggers_project.
 */
export async function skipMissed(tx: Tx, projectId: string): Promise<void> {
  const missed = await tx.any(triggerKind.sql`
    select ${triggerKind.columns} from triggers t
    where t.project_id = ${projectId} and t.next_fire_at <= now() order by t.id for update of t`)
  if (missed.length === 0) return
  const now = new Date(await tx.oneFirst(sql.type(z.object({ now: z.string() }))`select now() as now`))
  await setNextFireTimes(
    tx,
    missed.map(({ id, cron, timezone }) => ({ id, at: nextOccurrence(cron as string, timezone, now).toISOString() })),
  )
}

/** Fires due schedules when the first is due, polling at least every TRIGGER_SCHEDULER_INTERVAL_MS. */
export const scheduler: BackgroundTask = {
  name: 'trigger schedules',
  concern: 'trigger',
  start(services) {
    const { config, log, pool } = services
    if (config.TRIGGER_SCHEDULER_DISABLED) return undefined
    const interval = config.TRIGGER_SCHEDULER_INTERVAL_MS
    let closed = false
    let timer: NodeJS.Timeout | undefined
    let running: Promise<void> = Promise.resolve()

    const poll = async (): Promise<number> => {
      const ms = await millisecondsUntilDue(pool)
      if (ms === null || ms > 0) return Math.min(interval, Math.max(ms ?? interval, 1))
      let fired = BATCH
      while (!closed && fired === BATCH) fired = await fireDueSchedules(services)
      // None: another worker has locked them and may be lost before it commits.
      return fired > 0 ? 0 : Math.min(interval, LOCKED_RETRY_MS)
    }
    const run = async () => {
      let delay = interval
      try {
        delay = await runLoopOnce('trigger schedules', interval, poll)
      } catch (error) {
        log.error({ err: error }, 'schedule poll failed')
      }
      if (!closed) timer = setTimeout(start, delay)
    }
    const start = () => {
      running = run()
    }
    start()
    return {
      async close() {
        closed = true
        clearTimeout(timer)
        await running
      },
    }
  },
}
