import { z } from 'zod'
import { newId } from '../../core/api/ids.ts'
import type { Values } from '../../core/api/kind.ts'
import { timeRangeCondition } from '../../core/api/lists.ts'
import { allOf, type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { type DeliveryRow, deliveryKind, envelopeOf, type WebhookRow, webhookKind } from './model.ts'

/** Attempts in flight to one webhook at once, over all workers. */
export const SLOTS_PER_WEBHOOK = 5

const count = sql.type(z.object({ count: z.int() }))
const deliveryId = sql.type(z.object({ id: z.string() }))
const eventId = sql.type(z.object({ event_id: z.string() }))

/** Counts the webhooks of a project, to which nobody adds another until the transaction ends. Index webhooks_project. */
export async function countLockedWebhooks(db: Queryable, projectId: string): Promise<number> {
  await db.query(voidStatement`select from projects where id = ${projectId} for no key update`)
  return db.oneFirst(count`select count(*) from webhooks where project_id = ${projectId}`)
}

/** Writes a webhook and its slots. */
export async function insertWebhook(db: Queryable, values: Values<WebhookRow>): Promise<WebhookRow> {
  const row = await webhookKind.insert(db, values)
  await db.query(voidStatement`
    insert into webhook_slots (webhook_id, slot) select ${row.id}, n from generate_series(1, ${SLOTS_PER_WEBHOOK}) n`)
  return row
}

/** Puts a new secret in place; the old one goes on signing a second element for `overlapSeconds`. */
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

// Locks the texts of events against their retention, by event; a delivery whose text is not among them has to hold it.
const heldTexts = (events: Fragment): Fragment => sql.fragment`
  live as (select e.id from events e where e.id in (${events}) for key share),
  retained as (select k.event_id from retained_envelopes k where k.event_id in (${events}) for key share),
  held as (select id as event_id from live union all select event_id from retained)`

/**
 * Queues one delivery; null when the webhook is gone, or has one of this event already and this is no redelivery.
 */
export async function insertDelivery(
  db: Queryable,
  row: Pick<DeliveryRow, 'webhook_id' | 'event_id' | 'event_type' | 'envelope' | 'redelivery_of'>,
): Promise<DeliveryRow | null> {
  return db.maybeOne(deliveryKind.sql`
    with ${heldTexts(sql.fragment`${row.event_id}`)}, t as (
      insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, envelope, redelivery_of)
      select ${newId('whd')}, w.id, w.project_id, ${row.event_id}, ${row.event_type},
        case when not exists (select from held) then ${row.envelope} end, ${row.redelivery_of}
      from webhooks w where w.id = ${row.webhook_id}
      on conflict do nothing
      returning *
    )
    select ${deliveryKind.columns} from t`)
}

/**
 * Deliveries of a webhook that a bulk redelivery names, oldest first, at most `limit`. Served by
 * webhook_deliveries_webhook, read backwards.
 */
export async function isRedeliverable(
  db: Queryable,
  filter: { webhook_id: string; status: string; event_type?: string; from: Date | null; to: Date | null },
  limit: number,
): Promise<readonly string[]> {
  return db.anyFirst(deliveryId`
    select t.id from webhook_deliveries t
    where ${allOf([
      sql.fragment`t.webhook_id = ${filter.webhook_id} and t.status = ${filter.status}`,
      filter.event_type !== undefined && sql.fragment`t.event_type = ${filter.event_type}`,
      timeRangeCondition(sql.fragment`t.created_at`, filter),
    ])}
    order by t.created_at, t.id limit ${limit}`)
}

/** Makes the deliveries named again, each as a new one that sends the same text. */
export async function insertRedeliveries(db: Queryable, ids: readonly string[]): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    with original as (
      select t.*, n.new_id from ${sql.unnest(
        ids.map(id => [id, newId('whd')]),
        ['text', 'text'],
      )} as n (id, new_id) join webhook_deliveries t on t.id = n.id
    ), ${heldTexts(sql.fragment`select event_id from original`)}
    insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, envelope, redelivery_of)
    select o.new_id, o.webhook_id, o.project_id, o.event_id, o.event_type,
      case when not exists (select from held h where h.event_id = o.event_id) then ${envelopeOf(sql.fragment`o`)} end, o.id
    from original o`)
  return rowCount
}

/** One batch of a retention: finished deliveries made before `before`. Served by webhook_deliveries_finished. */
export async function deleteFinished(db: Queryable, before: Date, limit: number): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from webhook_deliveries where id = any (array(
      select id from webhook_deliveries where status <> 'queued' and created_at < ${before.toISOString()}::timestamptz
      order by created_at limit ${limit}))`)
  return rowCount
}

// Served by webhook_deliveries_event.
const unsent = sql.fragment`
  not exists (select from webhook_deliveries d where d.event_id = k.event_id and d.envelope is null)`

/** Locks up to `limit` texts of events that are gone and that no delivery sends any more, from the id `after` on. */
export async function lockOrphanedTexts(db: Queryable, after: string, limit: number): Promise<readonly string[]> {
  return db.anyFirst(eventId`
    select k.event_id from retained_envelopes k where k.event_id > ${after} and ${unsent}
    order by k.event_id limit ${limit} for update skip locked`)
}

/** Deletes locked texts, except those that a delivery was made again for before the lock was there. */
export async function deleteOrphanedTexts(db: Queryable, ids: readonly string[]): Promise<void> {
  await db.query(
    voidStatement`delete from retained_envelopes k where k.event_id = any (${sql.array([...ids], 'text')}) and ${unsent}`,
  )
}
