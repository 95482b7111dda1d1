import { z } from 'zod'
import type { EndUser } from '../../control/retention/erasure.ts'
import { idStatement, type Queryable, sql } from '../../core/db/sql.ts'

const erasable = sql.type(z.strictObject({ id: z.string(), memory_store_id: z.string() }))
export type Erasable = { id: string; memory_store_id: string }

/** Memories of an end user, or that come from its conversations; by memories_actor and memories_source. */
export const memoriesOfEndUser = (
  db: Queryable,
  { id, project_id, conversations }: EndUser,
  until: string,
  limit: number,
): Promise<readonly Erasable[]> =>
  db.any(erasable`
    select id, memory_store_id from (
      select id, memory_store_id, project_id, created_at from memories where source_id in (${conversations})
      union select id, memory_store_id, project_id, created_at from memories where actor_id = ${id}
    ) m
    where project_id = ${project_id} and created_at <= ${until}::timestamptz
    order by id limit ${limit}`)

/**
 * Entries of the ledger that are of an end user or come from its conversations, by memory_entries_actor, memory_entries_source
 * and memory_entries_conversation.
 */
export const entriesOfEndUser = (
  db: Queryable,
  { id, project_id, conversations }: EndUser,
  until: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from (
      select id, project_id, created_at from memory_entries where source_id in (${conversations})
      union select id, project_id, created_at from memory_entries where conversation_id in (${conversations})
      union select id, project_id, created_at from memory_entries where actor_id = ${id}
    ) e
    where project_id = ${project_id} and created_at <= ${until}::timestamptz
    order by id limit ${limit}`)

/** Deletes entries that resolved into memories, by memory_entries_memory; they say the same. Returns their ids. */
export const deleteEntriesOf = (db: Queryable, memoryIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    delete from memory_entries where memory_id = any(${sql.array([...memoryIds], 'text')}) returning id`)

const forgotten = sql.type(z.strictObject({ resolved_id: z.string().nullable() }))

/** Deletes entries. Returns for each the memory that it made or changed, null for one that changed none. */
export const deleteMemoryEntries = (db: Queryable, ids: readonly string[]): Promise<readonly (string | null)[]> =>
  db.anyFirst(forgotten`
    delete from memory_entries where id = any(${sql.array([...ids], 'text')})
    returning case when action <> 'skipped' then resolved_id end as resolved_id`)
