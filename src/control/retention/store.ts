import { type Queryable, statement } from '../../core/db/sql.ts'

/** Deletes stored idempotency answers older than a time (index idempotency_keys_created). Returns how many. */
export const deleteIdempotencyKeys = async (db: Queryable, before: Date): Promise<number> =>
  (await db.query(statement`delete from idempotency_keys where created_at < ${before.toISOString()}::timestamptz`))
    .rowCount

/** Deletes failed logins whose count began before a time and that no longer lock a name. Returns how many. */
export const deleteLoginFailures = async (db: Queryable, before: Date, now: Date): Promise<number> =>
  (
    await db.query(statement`
      delete from login_failures
      where first_failed_at < ${before.toISOString()}::timestamptz
        and (locked_until is null or locked_until < ${now.toISOString()}::timestamptz)`)
  ).rowCount

/** Deletes the heartbeats of workers that sent none since a time. Returns how many. */
export const deleteHeartbeats = async (db: Queryable, before: Date): Promise<number> =>
  (await db.query(statement`delete from worker_heartbeats where beat_at < ${before.toISOString()}::timestamptz`))
    .rowCount
