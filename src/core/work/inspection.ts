import { z } from 'zod'
import { allOf, type Fragment, type Queryable, sql } from '../db/sql.ts'
import { deadLetterQueue, NO_PROJECT, type Queue, queues } from '../queues/queue.ts'

/** Reads of queues, messages and workers for people; nothing here claims or changes messages. */

const QueuedWork = z.strictObject({
  queue: z.string(),
  project_id: z.string().nullable(),
  waiting: z.int(),
  delayed: z.int(),
  active: z.int(),
  oldest_seconds: z.number().nullable(),
})
export type QueuedWork = z.output<typeof QueuedWork>

/**
 * Counts the messages of all queues and of their dead letter queues, by queue and project. Reads every message that is
 * not finished, by muster_waiting and job_i7 (name, group_id; active).
 */
export const countMessages = (db: Queryable): Promise<readonly QueuedWork[]> => {
  const names = queues.all().flatMap(({ name }) => [name, deadLetterQueue(name)])
  return db.any(sql.type(QueuedWork)`
    select name as queue, nullif(group_id, ${NO_PROJECT}) as project_id,
      count(*) filter (where due) as waiting, count(*) filter (where not active and not due) as delayed,
      count(*) filter (where active) as active,
      extract(epoch from now() - min(start_after) filter (where due))::float8 as oldest_seconds
    from (
      select name, group_id, start_after, false as active, start_after <= now() as due
      from pgboss.job_common where name = any(${sql.array(names, 'text')}) and state < 'active' and not blocked
      union all
      select name, group_id, start_after, true, false
      from pgboss.job_common where name = any(${sql.array(names, 'text')}) and state = 'active' and group_id is not null
    ) message
    group by 1, 2`)
}

const ActiveWork = z.strictObject({ project_id: z.string().nullable(), active: z.int() })

/** Counts the active messages of a queue by project, by job_i7 (name, group_id; active). */
export const countActiveMessages = (
  db: Queryable,
  queue: Queue<any>,
): Promise<readonly z.output<typeof ActiveWork>[]> =>
  db.any(sql.type(ActiveWork)`
    select nullif(group_id, ${NO_PROJECT}) as project_id, count(*) as active
    from pgboss.job_common where name = ${queue.name} and state = 'active' and group_id is not null group by 1`)

const WorkerRow = z.strictObject({
  instance_id: z.string(),
  kinds: z.array(z.string()),
  version: z.string().nullable(),
  started_at: z.string(),
  heartbeat_at: z.string(),
  age_ms: z.number(),
  // Not strict: during a deployment, workers of a later release may write more fields.
  queues: z.record(z.string(), z.object({ slots: z.int(), share: z.int() })).nullable(),
})
export type WorkerRow = z.output<typeof WorkerRow>

/** Lists the workers that have not been deleted, newest heartbeat first. */
export const listWorkers = (db: Queryable): Promise<readonly WorkerRow[]> =>
  db.any(sql.type(WorkerRow)`
    select instance_id, kinds, version, started_at, beat_at as heartbeat_at,
      (extract(epoch from now() - beat_at) * 1000)::float8 as age_ms, queues
    from worker_heartbeats where kinds <> '{}' order by age_ms, instance_id`)

export const MESSAGE_STATES = ['waiting', 'delayed', 'active', 'dead'] as const
export type MessageState = (typeof MESSAGE_STATES)[number]

const MessageRow = z.strictObject({
  id: z.string(),
  key: z.string().nullable(),
  project_id: z.string().nullable(),
  state: z.enum(MESSAGE_STATES),
  attempts: z.int(),
  created_at: z.string(),
  due_at: z.string(),
  started_at: z.string().nullable(),
  renewed_at: z.string().nullable(),
  instance_id: z.string().nullable(),
  data: z.record(z.string(), z.unknown()),
  error: z.unknown(),
  entity_busy: z.boolean(),
})
export type MessageRow = z.output<typeof MessageRow>

export type MessageFilter = {
  state: MessageState | null
  project: string | null
  olderThanSeconds: number | null
}

/** Rows that are counted; above, the total is this. */
const COUNTED_MESSAGES = 10_000

/**
 * Returns a page of the unfinished messages and dead letters of a queue, oldest first, and their number up to
 * COUNTED_MESSAGES. muster_waiting and job_i7 serve it.
 */
export async function listMessages(
  db: Queryable,
  queue: Queue<any>,
  { state, project, olderThanSeconds }: MessageFilter,
  { limit, offset }: { limit: number; offset: number },
): Promise<{ rows: readonly MessageRow[]; total: number }> {
  const dead = deadLetterQueue(queue.name)
  const pending = sql.fragment`j.name = ${queue.name} and j.state < 'active' and not j.blocked`
  const conditions: Record<MessageState, Fragment> = {
    waiting: sql.fragment`(${pending} and j.start_after <= now())`,
    delayed: sql.fragment`(${pending} and j.start_after > now())`,
    active: sql.fragment`(j.name = ${queue.name} and j.state = 'active' and j.group_id is not null)`,
    dead: sql.fragment`(j.name = ${dead} and j.state < 'active')`,
  }
  const selected = state ? [conditions[state]] : MESSAGE_STATES.map(each => conditions[each])
  const where = allOf([
    sql.fragment`(${sql.join(selected, sql.fragment` or `)})`,
    project !== null && sql.fragment`j.group_id = ${project}`,
    olderThanSeconds !== null && sql.fragment`j.created_on < now() - ${olderThanSeconds} * interval '1 s'`,
  ])
  const total = await db.oneFirst(sql.type(z.strictObject({ count: z.int() }))`
    select count(*) from (select from pgboss.job_common j where ${where} limit ${COUNTED_MESSAGES}) counted`)
  const rows = await db.any(sql.type(MessageRow)`
    select j.id::text, j.singleton_key as key, nullif(j.group_id, ${NO_PROJECT}) as project_id,
      case when j.name = ${dead} then 'dead' when j.state = 'active' then 'active'
        when j.start_after <= now() then 'waiting' else 'delayed' end as state,
      case when j.name = ${dead} then coalesce(j.source_retry_count, 0) + 1
        when j.started_on is null then j.retry_count else j.retry_count + 1 end as attempts,
      coalesce(j.source_created_on, j.created_on)::timestamptz(3) as created_at,
      j.start_after::timestamptz(3) as due_at,
      case when j.state = 'active' then j.started_on::timestamptz(3) end as started_at,
      case when j.state = 'active' then j.heartbeat_on::timestamptz(3) end as renewed_at,
      case when j.state = 'active' then
        (select w.instance_id from worker_heartbeats w where w.holder = j.group_tier limit 1) end as instance_id,
      j.data, coalesce(j.source_output, j.output) as error,
      j.policy = 'stately' and j.state < 'active' and (
        select 1 from pgboss.job_common other
        where other.name = j.name and other.policy = 'stately' and other.state = 'active'
          and coalesce(other.singleton_key, '') = coalesce(j.singleton_key, '') limit 1) is not null as entity_busy
    from pgboss.job_common j where ${where}
    order by j.created_on, j.id limit ${limit} offset ${offset}`)
  return { rows, total }
}
