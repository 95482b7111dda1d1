import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import type { ConversationRow } from './model.ts'

/** Records of deleted messages, with which the purge of an end user finds copies in events and memories. */

const DAY_MS = 86_400_000

/** Ctes that record the messages of a conversation that a statement deletes as `gone`. */
export const recordDeletedCtes = ({ id, actor_id }: ConversationRow): Fragment => sql.fragment`
  theirs as (
    select actor_id, document_id from gone where actor_id is not null
    union select ${actor_id}::text, document_id from gone where ${actor_id}::text is not null),
  remembered_messages as (
    insert into deleted_messages (actor_id, document_id) select actor_id, document_id from theirs
    on conflict (actor_id, document_id) do update set deleted_at = excluded.deleted_at),
  remembered_conversations as (
    insert into deleted_conversations (actor_id, conversation_id)
    select actor_id, ${id} from theirs
    union select ${actor_id}::text, ${id} where ${actor_id}::text is not null
    on conflict do nothing)`

const documentIdRow = sql.type(z.object({ document_id: z.string() }))

/** Returns deleted messages of an end user. By the primary key. */
export const listDeletedMessages = (db: Queryable, actorId: string, limit: number): Promise<readonly string[]> =>
  db.anyFirst(documentIdRow`
    select document_id from deleted_messages where actor_id = ${actorId} order by document_id limit ${limit}`)

/** Deletes the records of messages whose copies were erased. */
export const deleteDeletedMessages = (
  db: Queryable,
  actorId: string,
  documentIds: readonly string[],
): Promise<unknown> =>
  db.query(voidStatement`
    delete from deleted_messages
    where actor_id = ${actorId} and document_id = any(${sql.array([...documentIds], 'text')})`)

/** Deletes records of messages whose events have expired, and returns their number. By deleted_messages_deleted_at. */
export async function pruneDeletedMessages({ pool, clock, config }: Services, stopping?: AbortSignal): Promise<number> {
  const before = new Date(clock.now().getTime() - config.EVENT_RETENTION_DAYS * DAY_MS).toISOString()
  return deleteInBatches(
    async limit =>
      (
        await pool.query(voidStatement`
          delete from deleted_messages where ctid = any (array(
            select ctid from deleted_messages where deleted_at < ${before}::timestamptz order by deleted_at limit ${limit}))`)
      ).rowCount,
    stopping,
  )
}
