import { z } from 'zod'
import type { Values } from '#core/api/kind.ts'
import { pageResult, timeRangeCondition } from '#core/api/lists.ts'
import type { Page } from '#core/api/operation.ts'
import { newId } from '#core/base/ids.ts'
import { allOf, countStatement, type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { WebhookSubscriber } from './delivery-store.ts'
import {
  DELIVERY_STATUSES,
  type DeliveryRow,
  deliveryKind,
  envelopeExpr,
  type WebhookRow,
  webhookKind,
} from './model.ts'

/** Most concurrent attempts per webhook over all workers. */
export const SLOTS_PER_WEBHOOK = 5

const eventIdRow = sql.type(z.object({ event_id: z.string() }))

/**
 * Counts the webhooks of a project and locks it against further webhooks until the transaction ends (index
 * webhooks_project).
 */
export async function countLockedWebhooks(db: Queryable, projectId: string): Promise<number> {
  await db.query(voidStatement`select from projects where id = ${projectId} for no key update`)
  return db.oneFirst(countStatement`select count(*) from webhooks where project_id = ${projectId} and task_id is null`)
}

/** Inserts a webhook and its slots. */
export async function insertWebhook(db: Queryable, values: Values<WebhookRow>): Promise<WebhookRow> {
  const row = await webhookKind.insert(db, values)
  await db.query(voidStatement`
    insert into webhook_slots (webhook_id, slot) select ${row.id}, n from generate_series(1, ${SLOTS_PER_WEBHOOK}) n`)
  return row
}

/** Replaces the secret; the previous secret adds a second signature for `overlapSeconds`. */
export const rotateWebhookSecret = (
  db: Queryable,
  id: string,
  sealed: string,
  overlapSeconds: number,
): Promise<WebhookRow | null> =>
  db.maybeOne(webhookKind.sql`
    update webhooks t set sealed_secret = ${sealed}, updated_at = now(),
      previous_sealed_secret = case when ${overlapSeconds} > 0 then t.sealed_secret end,
      previous_secret_until = case when ${overlapSeconds} > 0 then now() + make_interval(secs => ${overlapSeconds}) end
    where t.id = ${id} returning ${webhookKind.columns}`)

/** CTEs that lock the stored envelopes of events against retention; `held` lists the events that have one. */
const lockedEnvelopes = (events: Fragment): Fragment => sql.fragment`
  live as (select e.id from events e where e.id in (${events}) for key share),
  retained as (select k.event_id from retained_envelopes k where k.event_id in (${events}) for key share),
  held as (select id as event_id from live union all select event_id from retained)`

/**
 * Queues a delivery; null if the webhook is deleted, or already has a delivery of the event and this is no redelivery.
 */
export async function insertDelivery(
  db: Queryable,
  row: Pick<DeliveryRow, 'webhook_id' | 'event_id' | 'event_type' | 'envelope' | 'redelivery_of'>,
): Promise<DeliveryRow | null> {
  return db.maybeOne(deliveryKind.sql`
    with ${lockedEnvelopes(sql.fragment`${row.event_id}`)}, t as (
      insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, envelope, redelivery_of)
      select ${newId(deliveryKind.prefix)}, w.id, w.project_id, ${row.event_id}, ${row.event_type},
        case when not exists (select from held) then ${row.envelope} end, ${row.redelivery_of}
      from webhooks w where w.id = ${row.webhook_id}
      on conflict do nothing
      returning *
    )
    select ${deliveryKind.columns} from t`)
}

const EventWebhookRow = z.object({
  ...WebhookSubscriber.shape,
  name: z.string(),
  active: z.boolean(),
  created_at: z.string(),
  delivery_id: z.string().nullable(),
  status: z.enum(DELIVERY_STATUSES).nullable(),
})
/** A webhook with its latest delivery of an event. */
export type EventWebhookRow = z.output<typeof EventWebhookRow>

/**
 * Returns a page of the visible webhooks of a project, newest first, each with its latest delivery of an event.
 * `visible` is a condition over webhooks `t`. Indexes webhooks_project, webhook_deliveries_event.
 */
export const listEventWebhooks = (
  context: { db: Queryable; page: Page },
  event: { id: string; project_id: string },
  visible: Fragment,
  present: (row: EventWebhookRow) => object,
) =>
  pageResult<EventWebhookRow>(context, {
    columns: sql.fragment`t.id, t.project_id, t.name, t.events, t.active, t.created_at, t.policy_id,
      p.document as policy, d.id as delivery_id, d.status`,
    from: sql.fragment`webhooks t
      left join policies p on p.id = t.policy_id
      left join lateral (
        select l.id, l.status from webhook_deliveries l
        where l.event_id = ${event.id} and l.webhook_id = t.id
        order by l.created_at desc, l.id desc limit 1
      ) d on true`,
    rows: sql.fragment`t.project_id = ${event.project_id} and t.task_id is null and ${visible}`,
    order: sql.fragment`t.created_at desc, t.id desc`,
    present,
  })

/** Lists up to `limit` deliveries for a bulk redelivery, oldest first (backward scan of webhook_deliveries_webhook). */
export async function listRedeliverable(
  db: Queryable,
  filter: { webhook_id: string; status: string; event_type?: string; from: Date | null; to: Date | null },
  limit: number,
): Promise<readonly string[]> {
  return db.anyFirst(idStatement`
    select t.id from webhook_deliveries t
    where ${allOf([
      sql.fragment`t.webhook_id = ${filter.webhook_id} and t.status = ${filter.status}`,
      filter.event_type !== undefined && sql.fragment`t.event_type = ${filter.event_type}`,
      timeRangeCondition(sql.fragment`t.created_at`, filter),
    ])}
    order by t.created_at, t.id limit ${limit}`)
}

/** Queues a new delivery with the same envelope for each delivery. Returns their number. */
export async function insertRedeliveries(db: Queryable, ids: readonly string[]): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    with original as (
      select t.*, n.new_id from ${sql.unnest(
        ids.map(id => [id, newId(deliveryKind.prefix)]),
        ['text', 'text'],
      )} as n (id, new_id) join webhook_deliveries t on t.id = n.id
    ), ${lockedEnvelopes(sql.fragment`select event_id from original`)}
    insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, envelope, redelivery_of)
    select o.new_id, o.webhook_id, o.project_id, o.event_id, o.event_type,
      case when not exists (select from held h where h.event_id = o.event_id) then ${envelopeExpr(sql.fragment`o`)} end, o.id
    from original o`)
  return rowCount
}

/**
 * Deletes up to `limit` finished deliveries created before `before` (index webhook_deliveries_finished). Returns their
 * number.
 */
export async function deleteFinishedDeliveries(db: Queryable, before: Date, limit: number): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from webhook_deliveries where id = any (array(
      select id from webhook_deliveries where status <> 'queued' and created_at < ${before.toISOString()}::timestamptz
      order by created_at limit ${limit}))`)
  return rowCount
}

/** Condition that no delivery refers to a retained envelope `k` (index webhook_deliveries_event). */
const isOrphaned = sql.fragment`
  not exists (select from webhook_deliveries d where d.event_id = k.event_id and d.envelope is null)`

/** Locks up to `limit` orphaned retained envelopes after an event id. */
export async function lockOrphanedEnvelopes(db: Queryable, after: string, limit: number): Promise<readonly string[]> {
  return db.anyFirst(eventIdRow`
    select k.event_id from retained_envelopes k where k.event_id > ${after} and ${isOrphaned}
    order by k.event_id limit ${limit} for update skip locked`)
}

/** Deletes locked envelopes, unless a redelivery referred to them before the lock was acquired. */
export async function deleteOrphanedEnvelopes(db: Queryable, ids: readonly string[]): Promise<void> {
  await db.query(
    voidStatement`delete from retained_envelopes k where k.event_id = any (${sql.array([...ids], 'text')}) and ${isOrphaned}`,
  )
}

/** A message to one of the addresses of a task. */
export type TaskDelivery = { webhook_id: string; event_id: string; event_type: string; body: string }

/** Queues messages to addresses of tasks; an event is sent once to an address. */
export const insertTaskDeliveries = (db: Queryable, messages: readonly TaskDelivery[]): Promise<unknown> =>
  db.query(voidStatement`
    insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, envelope)
    select m.id, w.id, w.project_id, m.event_id, m.event_type, m.body
    from ${sql.unnest(
      messages.map(({ webhook_id, event_id, event_type, body }) => [
        newId(deliveryKind.prefix),
        webhook_id,
        event_id,
        event_type,
        body,
      ]),
      ['text', 'text', 'text', 'text', 'text'],
    )} as m (id, webhook_id, event_id, event_type, body)
    join webhooks w on w.id = m.webhook_id
    on conflict do nothing`)

/** Lists the addresses of a task, oldest first. By webhooks_task. */
export const listTaskWebhooks = (db: Queryable, taskId: string): Promise<readonly WebhookRow[]> =>
  db.any(webhookKind.sql`
    select ${webhookKind.columns} from webhooks t where t.task_id = ${taskId} order by t.created_at, t.id`)

/** Removes an address of a task, with its deliveries. By webhooks_task. */
export const removeTaskWebhook = (db: Queryable, taskId: string, name: string): Promise<WebhookRow | null> =>
  db.maybeOne(webhookKind.sql`
    delete from webhooks t where t.task_id = ${taskId} and t.name = ${name} returning ${webhookKind.columns}`)
