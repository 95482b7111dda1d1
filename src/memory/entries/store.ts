import { z } from 'zod'
import { kinds } from '#core/api/kind.ts'
import { requireAll } from '#core/api/references.ts'
import { raise } from '#core/base/errors.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { writeLocks } from '../facts/lock-store.ts'
import { ownerColumn } from '../facts/model.ts'
import { ownerKeyOf } from '../reach.ts'
import { type MemoryStoreRow, memoryStoreKind } from '../stores/model.ts'
import { type MemoryEntryRow, memoryEntryKind } from './model.ts'

/** Stores up to this size are searched through the database index of their vectors. */
const SMALL_STORE = 2000

const StoreStateRow = memoryStoreKind.row.extend({
  /** Snapshot of the statement that read the store. */
  snapshot: z.string(),
  /** ID of a current memory of the same end user with the same text. */
  twin: z.string().nullable(),
  /** Number of current memories of the project; null for a small store. */
  project_count: z.int().nullable(),
})
const storeStateRow = sql.type(StoreStateRow)
const lockedStoreRow = sql.type(memoryStoreKind.row.extend({ locks: z.string() }))
export type StoreState = MemoryStoreRow & z.output<typeof StoreStateRow>

/** Reads a store before a fact is written to it. Indexes: primary key, memories_hash, memory_stores_project. */
export const readStoreState = (
  db: Queryable,
  { memory_store_id: id, hash, actor_id }: { memory_store_id: string; hash: string; actor_id: string | null },
): Promise<StoreState | null> =>
  db.maybeOne(storeStateRow`
    select ${memoryStoreKind.columns}, pg_current_snapshot()::text as snapshot,
      (select m.id from memories m where m.memory_store_id = t.id and m.content_hash = decode(${hash}, 'hex')
        and ${ownerColumn(sql.fragment`m`)} = ${ownerKeyOf(actor_id)} and m.invalidated_at is null and (m.expires_at is null or m.expires_at > now()) order by m.id limit 1) as twin,
      case when t.valid_count > ${SMALL_STORE}
        then (select sum(s.valid_count)::int from memory_stores s where s.project_id = t.project_id) end as project_count
    from memory_stores t where t.id = ${id}`)

/** Locks a store for a write of an end user and returns it. Raises RESOURCE_NOT_FOUND, ACTOR_NOT_FOUND. */
export const lockForWrite = async (
  db: Queryable,
  { id, project_id, actor_id }: { id: string; project_id: string; actor_id: string | null },
): Promise<MemoryStoreRow> => {
  if (actor_id !== null) await requireAll(db, kinds.get('actor'), project_id, [actor_id])
  const store = await db.maybeOne(lockedStoreRow`
    select ${memoryStoreKind.columns}, l.locks from memory_stores t cross join ${writeLocks(id, actor_id)} l (locks)
    where t.id = ${id}`)
  return store ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/** `source_id`: conversation that the fact comes from; `attempt_key`: node execution that submits it. */
export type NewMemoryEntry = Omit<MemoryEntryRow, 'created_at' | 'store_tags'> & {
  source_id: string | null
  attempt_key?: string | null
}

/** Insert of an entry. */
export const entryInsert = (entry: NewMemoryEntry): Fragment => sql.fragment`
  insert into memory_entries as t (id, project_id, memory_store_id, content, action, memory_id, superseded_memory_id,
    similarity, declared, mechanism, memory_rule_id, generation_id, conversation_id, principal_type, principal_id, tags,
    metadata, source_id, resolved_id, attempt_key, actor_id)
  values (${entry.id}, ${entry.project_id}, ${entry.memory_store_id}, ${entry.content}, ${entry.action},
    ${entry.memory_id}, ${entry.superseded_memory_id}, ${entry.similarity}, ${entry.declared}, ${entry.mechanism},
    ${entry.memory_rule_id}, ${entry.generation_id}, ${entry.conversation_id}, ${entry.principal_type},
    ${entry.principal_id}, ${jsonb(entry.tags)}, ${entry.metadata === null ? null : JSON.stringify(entry.metadata)}::json,
    ${entry.source_id}, ${entry.memory_id}, ${entry.attempt_key ?? null}, ${entry.actor_id})`

/** Update that assigns the entries of memories to an end user. Index memory_entries_memory. */
export const entryOwnerUpdate = (actorId: string, memoryIds: readonly string[]): Fragment => sql.fragment`
  update memory_entries set actor_id = ${actorId}
  where memory_id = any(${sql.array([...memoryIds], 'text')}) and actor_id is null`

/** Moves the entries of an end user to another one. */
export const moveEntries = (db: Queryable, from: string, to: string): Promise<unknown> =>
  db.query(voidStatement`update memory_entries set actor_id = ${to} where actor_id = ${from}`)

/** Deletes the entries of an end user; returns their number. Index memory_entries_actor. */
export const deleteEntriesOfActor = async (db: Queryable, actorId: string): Promise<number> =>
  (await db.query(voidStatement`delete from memory_entries where actor_id = ${actorId}`)).rowCount

export const insertEntry = (db: Queryable, entry: NewMemoryEntry): Promise<MemoryEntryRow> =>
  db.one(memoryEntryKind.sql`${entryInsert(entry)} returning ${memoryEntryKind.columns}`)
