import { type Queryable, voidStatement } from '../../core/db/sql.ts'

/** Deletes stored idempotency answers older than a time, up to a number (index idempotency_keys_created). Returns how many. */
export const deleteIdempotencyKeys = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from idempotency_keys where ctid = any (array(
        select ctid from idempotency_keys where created_at < ${before.toISOString()}::timestamptz
        order by created_at limit ${limit}))`)
  ).rowCount

/** Deletes the heartbeats of workers that sent none since a time. Returns how many. */
export const deleteHeartbeats = async (db: Queryable, before: Date): Promise<number> =>
  (await db.query(voidStatement`delete from worker_heartbeats where beat_at < ${before.toISOString()}::timestamptz`))
    .rowCount
