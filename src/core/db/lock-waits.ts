import { z } from 'zod'
import { sqlStateOf } from './database-errors.ts'
import { type Queryable, sql } from './sql.ts'

/** Waits for locks of a transaction that is rolled back: it must not hold up others. */

const waitedRow = sql.type(z.object({ waited: z.boolean() }))

/** Whether another transaction waits for a lock of this one. 0.2 ms. */
export const isWaitedFor = (tx: Queryable): Promise<boolean> =>
  tx.oneFirst(waitedRow`
    select exists (
      select from pg_stat_activity a where a.datname = current_database() and a.wait_event_type = 'Lock'
        and pg_backend_pid() = any (pg_blocking_pids(a.pid))) as waited`)

/** Whether a lock was not granted within `lock_timeout`. */
export function isLockTimeout(error: unknown): boolean {
  for (let current = error; current instanceof Error; current = current.cause)
    if (sqlStateOf(current) === '55P03') return true
  return false
}
