import { z } from 'zod'
import type { EndUser } from '../../control/retention/content.ts'
import { identifying, type Queryable, sql } from '../../core/db/sql.ts'

const erasable = sql.type(z.strictObject({ id: z.string(), memory_store_id: z.string() }))
export type Erasable = { id: string; memory_store_id: string }

/** Memories that come from conversations of an end user, by memories_source. */
export const memoriesOfEndUser = (
  db: Queryable,
  { project_id, conversations }: EndUser,
  until: string,
  limit: number,
): Promise<readonly Erasable[]> =>
  db.any(erasable`
    select id, memory_store_id from memories
    where source_id in (${conversations}) and project_id = ${project_id} and created_at <= ${until}::timestamptz
    order by id limit ${limit}`)

/** Entries of the ledger that come from conversations of an end user, by memory_entries_source and memory_entries_conversation. */
export const entriesOfEndUser = (
  db: Queryable,
  { project_id, conversations }: EndUser,
  until: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(identifying`
    select id from (
      select id, project_id, created_at from memory_entries where source_id in (${conversations})
      union select id, project_id, created_at from memory_entries where conversation_id in (${conversations})
    ) e
    where project_id = ${project_id} and created_at <= ${until}::timestamptz
    order by id limit ${limit}`)

/** Locks stores, as every writer of their memories does first. */
export const lockStores = (db: Queryable, ids: readonly string[]): Promise<unknown> =>
  db.any(identifying`
    select id from memory_stores where id = any(${sql.array([...new Set(ids)], 'text')}) order by id for no key update`)

/** Deletes entries that resolved into memories, by memory_entries_memory; they say the same. Returns their ids. */
export const deleteEntriesOf = (db: Queryable, memoryIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(identifying`
    delete from memory_entries where memory_id = any(${sql.array([...memoryIds], 'text')}) returning id`)

const forgotten = sql.type(z.strictObject({ resolved_id: z.string().nullable() }))

/** Deletes entries. Returns for each the memory that it made or changed, null for one that changed none. */
export const deleteEntries = (db: Queryable, ids: readonly string[]): Promise<readonly (string | null)[]> =>
  db.anyFirst(forgotten`
    delete from memory_entries where id = any(${sql.array([...ids], 'text')})
    returning case when action <> 'skipped' then resolved_id end as resolved_id`)
