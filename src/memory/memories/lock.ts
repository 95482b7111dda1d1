import { identifying, type Queryable } from '../../core/db/sql.ts'

/**
 * Locks the store of a memory. Writes of one store decide one after the other, and whoever changes one of its memories
 * holds its lock before the memory's.
 */
export const lockStoreOf = (db: Queryable, memoryId: string): Promise<unknown> =>
  db.maybeOne(identifying`
    select s.id from memory_stores s
    where s.id = (select m.memory_store_id from memories m where m.id = ${memoryId}) for no key update of s`)
