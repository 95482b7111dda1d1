import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { ownerKeyOf } from '../reach.ts'

/**
 * Writes of one end user to a store decide one after the other, and beside those of others; only what they write into the
 * count of the store has their commits follow each other. Whoever changes facts that are there, or the store, holds the whole
 * store. These locks come behind that of the end user's row, and before those of other rows.
 */

const storeLock = (id: Fragment): Fragment => sql.fragment`hashtextextended('memory store ' || ${id}, 0)`

/** The locks of a write, as a row to join: what is read beside them is of the moment before they are held. */
export const writeLocks = (storeId: string, actorId: string | null): Fragment => sql.fragment`
  (select pg_advisory_xact_lock_shared(${storeLock(sql.fragment`${storeId}`)})::text
    || pg_advisory_xact_lock(hashtextextended(${`memory of ${storeId} ${ownerKeyOf(actorId)}`}, 0))::text)`

/** Holds whole stores until the transaction ends. */
export const lockStores = (db: Queryable, ids: readonly string[]): Promise<unknown> =>
  db.query(voidStatement`
    select from unnest(${sql.array([...new Set(ids)].sort(), 'text')}) s (id)
    cross join lateral pg_advisory_xact_lock(${storeLock(sql.fragment`s.id`)}) l`)

/** Holds the store of a memory. */
export const lockStoreOf = (db: Queryable, memoryId: string): Promise<unknown> =>
  db.maybeOne(idStatement`
    select m.id from memories m
    cross join lateral pg_advisory_xact_lock(${storeLock(sql.fragment`m.memory_store_id`)}) l
    where m.id = ${memoryId}`)
