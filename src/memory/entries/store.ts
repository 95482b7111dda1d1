import { z } from 'zod'
import { inProject, kinds } from '#core/api/kind.ts'
import { sendAhead } from '#core/db/commit-piggyback.ts'
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
const locksRow = sql.type(z.object({ locks: z.string() }))

/** A fact for which the state of a store is read. */
type StoreQuery = { memory_store_id: string; hash: string; actor_id: string | null }
/** A store before the fact of `query` is written to it. */
export type StoreState = MemoryStoreRow & z.output<typeof StoreStateRow> & { query: StoreQuery }

/** Whether a state was read for a fact. */
export const isStateFor = ({ query }: StoreState, { memory_store_id, hash, actor_id }: StoreQuery): boolean =>
  query.memory_store_id === memory_store_id && query.hash === hash && query.actor_id === actor_id

/** Reads a store before a fact is written to it. Indexes: primary key, memories_hash, memory_stores_project. */
export async function readStoreState(
  db: Queryable,
  { memory_store_id: id, hash, actor_id }: StoreQuery,
): Promise<StoreState | null> {
  const row = await db.maybeOne(storeStateRow`
    select ${memoryStoreKind.columns}, pg_current_snapshot()::text as snapshot,
      (select m.id from memories m where m.memory_store_id = t.id and m.content_hash = decode(${hash}, 'hex')
        and ${ownerColumn(sql.fragment`m`)} = ${ownerKeyOf(actor_id)} and m.invalidated_at is null and (m.expires_at is null or m.expires_at > now()) order by m.id limit 1) as twin,
      case when t.valid_count > ${SMALL_STORE}
        then (select sum(s.valid_count)::int from memory_stores s where s.project_id = t.project_id) end as project_count
    from memory_stores t where t.id = ${id}`)
  return row && { ...row, query: { memory_store_id: id, hash, actor_id } }
}

/**
 * Locks a store for a write of an end user, together with the next statement, which sees all earlier writes. An end user of the
 * project cannot be deleted until the transaction ends.
 */
export function lockForWrite(
  tx: Queryable,
  { id, project_id, actor_id }: { id: string; project_id: string; actor_id: string | null },
): Promise<unknown> {
  const actors = kinds.get('actor')
  const owner =
    actor_id === null
      ? sql.fragment`select`
      : sql.fragment`
          select from ${sql.identifier([actors.table])} t where t.id = ${actor_id} and ${inProject(actors, project_id)}
          for key share of t`
  return sendAhead(() =>
    tx.query(locksRow`
      select l.locks from (select count(*) from (${owner}) o) owners
      cross join lateral (select owners.count, ${writeLocks(id, actor_id)} as locks offset 0) l`),
  )
}

/** `source_id`: conversation that the fact comes from; `attempt_key`: node execution that submits it. */
export type NewMemoryEntry = Omit<MemoryEntryRow, 'created_at' | 'store_tags'> & {
  source_id: string | null
  attempt_key?: string | null
}

/** Insert of an entry. */
export const entryInsert = (entry: NewMemoryEntry, guard: Fragment = sql.fragment`true`): Fragment => sql.fragment`
  insert into memory_entries as t (id, project_id, memory_store_id, content, action, memory_id, superseded_memory_id,
    similarity, declared, mechanism, memory_rule_id, generation_id, conversation_id, principal_type, principal_id, tags,
    metadata, source_id, resolved_id, attempt_key, actor_id)
  select ${entry.id}, ${entry.project_id}, ${entry.memory_store_id}, ${entry.content}, ${entry.action},
    ${entry.memory_id}, ${entry.superseded_memory_id}, ${entry.similarity}, ${entry.declared}, ${entry.mechanism},
    ${entry.memory_rule_id}, ${entry.generation_id}, ${entry.conversation_id}, ${entry.principal_type},
    ${entry.principal_id}, ${jsonb(entry.tags)}, ${entry.metadata === null ? null : JSON.stringify(entry.metadata)}::json,
    ${entry.source_id}, ${entry.memory_id}, ${entry.attempt_key ?? null}, ${entry.actor_id}
  where ${guard}`

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
