import { type Queryable, sql } from '../../core/db/sql.ts'

/** One batch of a retention: dispatched events made before `before`. Served by events_created. */
export async function deleteDispatched(db: Queryable, before: Date, limit: number): Promise<number> {
  const { rowCount } = await db.query(sql.unsafe`
    delete from events where id = any (array(
      select id from events where created_at < ${before.toISOString()}::timestamptz and dispatched_at is not null
      order by created_at limit ${limit}))`)
  return rowCount
}
