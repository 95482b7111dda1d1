import { z } from 'zod'
import { idFloor } from '#core/base/ids.ts'
import type { MonthlyTable } from '#core/db/months.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { readEnvelope, StoredEnvelope, storedEnvelope } from '#core/writes/event-envelopes.ts'
import { EVENT_PREFIX } from '#core/writes/events.ts'
import { deliveryKind } from '../webhooks/model.ts'
import { eventKind } from './model.ts'

const envelopeRow = sql.type(StoredEnvelope)

/**
 * Returns the envelope of an event for a new delivery and stores it uncompressed. The row lock excludes a concurrent
 * redaction.
 */
export async function lockEventText(db: Queryable, id: string): Promise<string> {
  const row = await db.one(envelopeRow`select ${storedEnvelope} from events where id = ${id} for no key update`)
  const text = readEnvelope(row)
  if (row.packed) await db.query(voidStatement`update events set envelope = ${text}, packed = null where id = ${id}`)
  return text
}

/**
 * Locks up to `limit` dispatched events created before `before`, oldest first. Primary key: ids are ordered by time.
 */
export const lockExpiredEvents = (db: Queryable, before: Date, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from events where id < ${idFloor(eventKind.prefix, before)} and dispatched_at is not null
    order by id limit ${limit} for update skip locked`)

const isReferredTo = (event: Fragment, condition = sql.fragment`true`): Fragment => sql.fragment`
    exists (select from webhook_deliveries d where d.event_id = ${event}.id and d.envelope is null and ${condition})`

const retainEnvelopes = (where: Fragment): Fragment => sql.fragment`
    insert into retained_envelopes (event_id, project_id, resource_type, resource_id, envelope)
    select e.id, e.project_id, e.resource_type, e.resource_id, e.envelope from ${where}`

/**
 * Deletes locked events and moves envelopes that deliveries refer to into retained_envelopes (index webhook_deliveries_event). A
 * concurrent redelivery waits for the lock and then copies the envelope.
 */
export async function deleteExpiredEvents(db: Queryable, ids: readonly string[]): Promise<void> {
  await db.query(voidStatement`
    with gone as (delete from events where id = any (${sql.array([...ids], 'text')}) returning *)
    ${retainEnvelopes(sql.fragment`gone e where ${isReferredTo(sql.fragment`e`)}`)}`)
}

const waitingRow = sql.type(z.object({ waiting: z.boolean() }))

/** Longest time by which IDs of deliveries that commit now may be older than now. */
const MAX_COMMIT_DELAY_MS = 600_000

/**
 * A month of events is dropped once all are dispatched. Until then a redaction waits for the locks of events that have deliveries,
 * and afterwards finds their retained envelopes.
 */
export const eventMonths: MonthlyTable = {
  table: 'events',
  prefix: EVENT_PREFIX,
  async expire(tx, partition) {
    const { waiting } = await tx.one(
      waitingRow`select exists (select from ${partition} where dispatched_at is null) as waiting`,
    )
    if (waiting) return false
    await tx.query(voidStatement`
      with referred as (select e.* from ${partition} e where ${isReferredTo(sql.fragment`e`)} for share)
      ${retainEnvelopes(sql.fragment`referred e`)} on conflict do nothing`)
    return true
  },
  async expireChanges(tx, partition, since) {
    const floor = idFloor(deliveryKind.prefix, new Date(since.getTime() - MAX_COMMIT_DELAY_MS))
    const isReferred = isReferredTo(sql.fragment`e`, sql.fragment`d.id >= ${floor}`)
    await tx.query(
      voidStatement`${retainEnvelopes(sql.fragment`${partition} e where ${isReferred}`)} on conflict do nothing`,
    )
  },
}
