import { type Queryable, sql } from '../../core/db/sql.ts'

const deleted = ({ rowCount }: { rowCount: number }): number => rowCount

/** Deletes kept answers older than a time (index idempotency_keys_created). */
export const deleteIdempotencyKeys = (db: Queryable, before: Date): Promise<number> =>
  db
    .query(sql.unsafe`delete from idempotency_keys where created_at < ${before.toISOString()}::timestamptz`)
    .then(deleted)

/** Deletes failed logins whose count began before a time and that lock nobody out any more. */
export const deleteLoginFailures = (db: Queryable, before: Date, now: Date): Promise<number> =>
  db
    .query(sql.unsafe`
      delete from login_failures
      where first_failed_at < ${before.toISOString()}::timestamptz
        and (locked_until is null or locked_until < ${now.toISOString()}::timestamptz)`)
    .then(deleted)

/** Deletes the signs of life of workers not heard of since a time. */
export const deleteHeartbeats = (db: Queryable, before: Date): Promise<number> =>
  db.query(sql.unsafe`delete from worker_heartbeats where beat_at < ${before.toISOString()}::timestamptz`).then(deleted)
