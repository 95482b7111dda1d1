import { idFloor } from '#core/base/ids.ts'
import { idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { readEnvelope, StoredEnvelope, storedEnvelope } from '#core/writes/event-envelopes.ts'
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

/**
 * Deletes locked events and moves envelopes that deliveries refer to into retained_envelopes (index
 * webhook_deliveries_event). A concurrent redelivery waits for the lock and then copies the envelope.
 */
export async function deleteExpiredEvents(db: Queryable, ids: readonly string[]): Promise<void> {
  await db.query(voidStatement`
    with gone as (delete from events where id = any (${sql.array([...ids], 'text')}) returning *)
    insert into retained_envelopes (event_id, project_id, resource_type, resource_id, envelope)
    select g.id, g.project_id, g.resource_type, g.resource_id, g.envelope from gone g
    where exists (select from webhook_deliveries d where d.event_id = g.id and d.envelope is null)`)
}
