import { z } from 'zod'
import type { EndUser } from '../../control/retention/erasure.ts'
import { MAX_PAGE_BYTES } from '../../core/api/lists.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { turnsOfEndUser } from '../../execution/generations/erase/purge-store.ts'
import { type DatasetItemRow, type DatasetRow, datasetItemKind } from './model.ts'

/** What an item was copied from: a turn, a conversation, and the end user that they belong to. */
export type DatasetSource = {
  source_generation_id: string | null
  source_conversation_id: string | null
  source_actor_id: string | null
}

/** An item to be written. */
export type NewItem = Pick<DatasetItemRow, 'id' | 'input' | 'expected_output' | 'metadata' | 'bytes'> &
  Partial<DatasetSource>

/** Adds items of one dataset, whose row the caller holds, in one statement. */
export const insertDatasetItems = (
  db: Queryable,
  { id, project_id }: Pick<DatasetRow, 'id' | 'project_id'>,
  items: readonly NewItem[],
) =>
  db.query(voidStatement`
    insert into dataset_items (id, project_id, dataset_id, input, expected_output, metadata, bytes, source_generation_id,
      source_conversation_id, source_actor_id)
    select i.id, ${project_id}, ${id}, i.input, i.expected_output, i.metadata, i.bytes, i.source_generation_id,
      i.source_conversation_id, i.source_actor_id
    from json_to_recordset(${JSON.stringify(items)}::json) as i (id text, input json, expected_output text, metadata json,
      bytes bigint, source_generation_id text, source_conversation_id text, source_actor_id text)`)

/** Counts items of a dataset, and their bytes, in or out. */
export const addToCount = (db: Queryable, datasetId: string, { count, bytes }: { count: number; bytes: number }) =>
  db.query(voidStatement`
    update datasets set item_count = item_count + ${count}, item_bytes = item_bytes + ${bytes} where id = ${datasetId}`)

/** Items of a dataset in their order, behind one, as many as are read at once. By dataset_items_dataset. */
export const itemsAfter = (
  db: Queryable,
  datasetId: string,
  after: Pick<DatasetItemRow, 'created_at' | 'id'> | null,
  limit: number,
): Promise<readonly DatasetItemRow[]> =>
  db.any(datasetItemKind.sql`
    select ${datasetItemKind.columns} from dataset_items t
    where t.id in (
      select id from (
        select id, bytes, sum(bytes) over (order by created_at, id) as upto from (
          select i.id, i.created_at, i.bytes from dataset_items i
          where i.dataset_id = ${datasetId}
            ${after ? sql.fragment`and (i.created_at, i.id) > (${after.created_at}::timestamptz, ${after.id})` : sql.fragment``}
          order by i.created_at, i.id limit ${limit}) as next) as added
      where upto - bytes < ${MAX_PAGE_BYTES})
    order by t.created_at, t.id`)

/** What items of datasets take, by dataset_items_project. */
export const datasetFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select sum(i.bytes) from dataset_items i where i.project_id = ${project}`,
})

/** Those of some turns that exist, kept from being deleted until the transaction ends. By the primary key. */
export const lockTurns = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`select id from generations where id = any(${sql.array([...ids], 'text')}) for key share`)

/** Keeps the texts of messages from being deleted until the transaction ends; false where one is gone. By the primary key. */
export const holdTexts = async (db: Queryable, documentIds: readonly string[]): Promise<boolean> => {
  const held = await db.anyFirst(idStatement`
    select id from documents where id = any(${sql.array([...documentIds], 'text')}) for key share`)
  return held.length === documentIds.length
}

/**
 * Selects of the ids of rows `t` of a table that were copied from what an end user said or was answered. By the indexes of
 * their sources.
 */
export const copiedFrom = (table: 'dataset_items' | 'eval_results', endUser: EndUser): Fragment => {
  const rows = sql.identifier([table])
  return sql.fragment`
    select t.id from ${rows} t where t.source_actor_id = ${endUser.id}
    union select t.id from ${rows} t where t.source_conversation_id in (${endUser.conversations})
    union select t.id from ${rows} t where t.source_generation_id in (${turnsOfEndUser(endUser)})`
}

/** Items of datasets that were copied from an end user up to a time. */
export const itemsOfEndUser = (
  db: Queryable,
  endUser: EndUser,
  until: string,
  limit: number,
): Promise<readonly DatasetItemRow[]> =>
  db.any(datasetItemKind.sql`
    select ${datasetItemKind.columns} from dataset_items t
    where t.id in (${copiedFrom('dataset_items', endUser)}) and t.project_id = ${endUser.project_id}
      and t.created_at <= ${until}::timestamptz
    limit ${limit}`)

const removed = sql.type(z.strictObject({ dataset_id: z.string(), count: z.int(), bytes: z.int() }))

/** Locks datasets in the order of their ids. */
export const lockDatasets = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`
    select from datasets where id = any(${sql.array([...ids], 'text')}) order by id for update`)

/** Deletes items; returns how many of each dataset went, and their bytes. */
export const deleteItems = (db: Queryable, ids: readonly string[]) =>
  db.any(removed`
    with gone as (
      delete from dataset_items where id = any(${sql.array([...ids], 'text')}) returning dataset_id, bytes)
    select dataset_id, count(*) as count, sum(bytes)::bigint as bytes from gone group by dataset_id`)

/** Gives items to another actor. By dataset_items_source_actor. */
export const moveItems = (db: Queryable, from: string, to: string) =>
  db.query(voidStatement`update dataset_items set source_actor_id = ${to} where source_actor_id = ${from}`)
