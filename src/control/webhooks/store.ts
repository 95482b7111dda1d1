import { newId } from '../../core/api/ids.ts'
import { between } from '../../core/api/lists.ts'
import { all, type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { type DeliveryRow, deliveryColumns, envelopeOf, type WebhookRow, webhook } from './model.ts'

/** Attempts in flight to one webhook at once, over all workers. */
export const SLOTS = 5

export type NewWebhook = Omit<WebhookRow, 'updated_at'>

/** Counts the webhooks of a project, to which nobody adds another until the transaction ends. Index webhooks_project. */
export async function countLocked(db: Queryable, projectId: string): Promise<number> {
  await db.query(sql.unsafe`select from projects where id = ${projectId} for no key update`)
  return (await db.oneFirst(sql.unsafe`select count(*)::int from webhooks where project_id = ${projectId}`)) as number
}

/** Writes a webhook and its slots. */
export async function insertWebhook(db: Queryable, row: NewWebhook): Promise<WebhookRow> {
  return (await db.one(sql.unsafe`
    with t as (
      insert into webhooks (id, project_id, policy_id, name, description, url, events, active, sealed_secret, created_at, updated_at)
      values (${row.id}, ${row.project_id}, ${row.policy_id}, ${row.name}, ${row.description}, ${row.url},
        ${sql.array(row.events, 'text')}, ${row.active}, ${row.sealed_secret}, ${row.created_at}, ${row.created_at})
      returning *
    ), s as (insert into webhook_slots (webhook_id, slot) select t.id, n from t, generate_series(1, ${SLOTS}) n)
    select ${webhook.columns} from t`)) as WebhookRow
}

/** Writes the columns given; a webhook that is switched on starts with a clean record. */
export async function updateWebhook(db: Queryable, id: string, patch: Partial<NewWebhook>): Promise<WebhookRow | null> {
  const set: Fragment[] = [sql.fragment`updated_at = now()`]
  for (const name of ['policy_id', 'name', 'description', 'url', 'active'] as const)
    if (patch[name] !== undefined) set.push(sql.fragment`${sql.identifier([name])} = ${patch[name]}`)
  if (patch.events) set.push(sql.fragment`events = ${sql.array(patch.events, 'text')}`)
  if (patch.active) set.push(sql.fragment`failures = 0, failing_since = null`)
  return (await db.maybeOne(sql.unsafe`
    update webhooks t set ${sql.join(set, sql.fragment`, `)} where t.id = ${id} returning ${webhook.columns}`)) as WebhookRow | null
}

/** Puts a new secret in place; the old one goes on signing a second element for `overlapSeconds`. */
export async function rotateSecret(
  db: Queryable,
  id: string,
  sealed: string,
  overlapSeconds: number,
): Promise<WebhookRow | null> {
  return (await db.maybeOne(sql.unsafe`
    update webhooks t set sealed_secret = ${sealed}, updated_at = now(),
      previous_sealed_secret = case when ${overlapSeconds} > 0 then t.sealed_secret end,
      previous_secret_until = case when ${overlapSeconds} > 0 then now() + make_interval(secs => ${overlapSeconds}) end
    where t.id = ${id} returning ${webhook.columns}`)) as WebhookRow | null
}

/** Deletes a webhook; its deliveries and slots go by their foreign keys. */
export async function deleteWebhook(db: Queryable, id: string): Promise<WebhookRow | null> {
  return (await db.maybeOne(
    sql.unsafe`delete from webhooks t where t.id = ${id} returning ${webhook.columns}`,
  )) as WebhookRow | null
}

/** Whether a policy exists; it cannot go until the transaction ends. */
export async function holdPolicy(db: Queryable, id: string): Promise<boolean> {
  return (await db.maybeOne(sql.unsafe`select 1 from policies where id = ${id} for key share`)) !== null
}

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
  return (await db.maybeOne(sql.unsafe`
    with ${heldTexts(sql.fragment`${row.event_id}`)}, t as (
      insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, envelope, redelivery_of)
      select ${newId('whd')}, w.id, w.project_id, ${row.event_id}, ${row.event_type},
        case when not exists (select from held) then ${row.envelope} end, ${row.redelivery_of}
      from webhooks w where w.id = ${row.webhook_id}
      on conflict do nothing
      returning *
    )
    select ${deliveryColumns} from t`)) as DeliveryRow | null
}

/**
 * Deliveries of a webhook that a bulk redelivery names, oldest first, at most `limit`. Served by
 * webhook_deliveries_webhook, read backwards.
 */
export async function redeliverable(
  db: Queryable,
  filter: { webhook_id: string; status: string; event_type?: string; from: Date | null; to: Date | null },
  limit: number,
): Promise<readonly string[]> {
  return (await db.anyFirst(sql.unsafe`
    select t.id from webhook_deliveries t
    where ${all([
      sql.fragment`t.webhook_id = ${filter.webhook_id} and t.status = ${filter.status}`,
      filter.event_type !== undefined && sql.fragment`t.event_type = ${filter.event_type}`,
      between(sql.fragment`t.created_at`, filter),
    ])}
    order by t.created_at, t.id limit ${limit}`)) as readonly string[]
}

/** Makes the deliveries named again, each as a new one that sends the same text. */
export async function redeliverAll(db: Queryable, ids: readonly string[]): Promise<number> {
  const { rowCount } = await db.query(sql.unsafe`
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
  const { rowCount } = await db.query(sql.unsafe`
    delete from webhook_deliveries where id = any (array(
      select id from webhook_deliveries where status <> 'queued' and created_at < ${before.toISOString()}::timestamptz
      order by created_at limit ${limit}))`)
  return rowCount
}

// Served by webhook_deliveries_event.
const unsent = sql.fragment`
  not exists (select from webhook_deliveries d where d.event_id = k.event_id and d.envelope is null)`

/** Locks up to `limit` texts of events that are gone and that no delivery sends any more, from the id `after` on. */
export async function lockUnsent(db: Queryable, after: string, limit: number): Promise<readonly string[]> {
  return (await db.anyFirst(sql.unsafe`
    select k.event_id from retained_envelopes k where k.event_id > ${after} and ${unsent}
    order by k.event_id limit ${limit} for update skip locked`)) as readonly string[]
}

/** Deletes locked texts, except those that a delivery was made again for before the lock was there. */
export async function deleteUnsent(db: Queryable, ids: readonly string[]): Promise<void> {
  await db.query(
    sql.unsafe`delete from retained_envelopes k where k.event_id = any (${sql.array([...ids], 'text')}) and ${unsent}`,
  )
}
