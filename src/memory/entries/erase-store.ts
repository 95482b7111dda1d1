import { z } from 'zod'
import type { EndUser } from '#control/retention/erasure.ts'
import { idStatement, type Queryable, sql } from '#core/db/sql.ts'

const memoryRefRow = sql.type(z.strictObject({ id: z.string(), memory_store_id: z.string() }))
export type MemoryRef = { id: string; memory_store_id: string }

/** Lists memories of an end user and from its conversations. Indexes memories_actor, memories_source. */
export const listMemoriesOfEndUser = (
  db: Queryable,
  { id, project_id, conversations }: EndUser,
  until: string,
  limit: number,
): Promise<readonly MemoryRef[]> =>
  db.any(memoryRefRow`
    select id, memory_store_id from (
      select id, memory_store_id, project_id, created_at from memories where source_id in (${conversations})
      union select id, memory_store_id, project_id, created_at from memories where actor_id = ${id}
    ) m
    where project_id = ${project_id} and created_at <= ${until}::timestamptz
    order by id limit ${limit}`)

/**
 * Lists entries of an end user and from its conversations. Indexes memory_entries_actor, memory_entries_source,
 * memory_entries_conversation.
 */
export const listEntriesOfEndUser = (
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

/**
 * Deletes entries that resolved to memories, whose text they repeat; returns their IDs. Index memory_entries_memory.
 */
export const deleteEntriesOfMemories = (db: Queryable, memoryIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    delete from memory_entries where memory_id = any(${sql.array([...memoryIds], 'text')}) returning id`)

const deletedEntryRow = sql.type(z.strictObject({ resolved_id: z.string().nullable() }))

/** Deletes entries; returns for each the memory that it created or updated, or null. */
export const deleteMemoryEntries = (db: Queryable, ids: readonly string[]): Promise<readonly (string | null)[]> =>
  db.anyFirst(deletedEntryRow`
    delete from memory_entries where id = any(${sql.array([...ids], 'text')})
    returning case when action <> 'skipped' then resolved_id end as resolved_id`)
