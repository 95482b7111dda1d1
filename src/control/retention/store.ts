import { storedBytes } from '#core/api/idempotency.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Footprint } from '../storage/footprint.ts'

/** Bytes of the responses stored for an Idempotency-Key. Index idempotency_keys_project. */
export const idempotencyFootprint: Footprint = project => ({
  bytes: sql.fragment`select sum(${storedBytes}) from idempotency_keys where project_id = ${project}`,
})

/**
 * Deletes up to `limit` stored idempotent responses older than `before` (index idempotency_keys_created). Returns their
 * number.
 */
export const deleteIdempotencyKeys = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from idempotency_keys where ctid = any (array(
        select ctid from idempotency_keys where created_at < ${before.toISOString()}::timestamptz
        order by created_at limit ${limit}))`)
  ).rowCount

/** Deletes heartbeats older than `before`. Returns their number. */
export const deleteHeartbeats = async (db: Queryable, before: Date): Promise<number> =>
  (await db.query(voidStatement`delete from worker_heartbeats where beat_at < ${before.toISOString()}::timestamptz`))
    .rowCount
