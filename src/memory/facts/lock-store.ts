import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { ownerKeyOf } from '../reach.ts'

/**
 * Locks of memory stores. Writes of one end user to a store are serialized, concurrently with writes of other end
 * users; only their commits serialize on the count of the store. Changes of existing facts or of the store lock the
 * whole store. Lock order: row of the end user, these locks, other rows.
 */

const storeLock = (id: Fragment): Fragment => sql.fragment`hashtextextended('memory store ' || ${id}, 0)`

/** Subquery that acquires the locks of a write. Its statement reads a snapshot from before the locks are acquired. */
export const writeLocks = (storeId: string, actorId: string | null): Fragment => sql.fragment`
  (select pg_advisory_xact_lock_shared(${storeLock(sql.fragment`${storeId}`)})::text
    || pg_advisory_xact_lock(hashtextextended(${`memory of ${storeId} ${ownerKeyOf(actorId)}`}, 0))::text)`

/** Locks whole stores until the transaction ends. */
export const lockStores = (db: Queryable, ids: readonly string[]): Promise<unknown> =>
  db.query(voidStatement`
    select from unnest(${sql.array([...new Set(ids)].sort(), 'text')}) s (id)
    cross join lateral pg_advisory_xact_lock(${storeLock(sql.fragment`s.id`)}) l`)

/** Locks the store of a memory. */
export const lockStoreOf = (db: Queryable, memoryId: string): Promise<unknown> =>
  db.maybeOne(idStatement`
    select m.id from memories m
    cross join lateral pg_advisory_xact_lock(${storeLock(sql.fragment`m.memory_store_id`)}) l
    where m.id = ${memoryId}`)
