import { z } from 'zod'
import type { EndUser } from '#control/retention/erasure.ts'
import { MAX_PAGE_BYTES } from '#core/api/lists.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { turnsOfEndUser } from '#execution/generations/erase/purge-store.ts'
import { type DatasetItemRow, type DatasetRow, datasetItemKind } from './model.ts'

/** Source of a copied item: a turn, a conversation, and their end user. */
export type DatasetSource = {
  source_generation_id: string | null
  source_conversation_id: string | null
  source_actor_id: string | null
}

/** An item to insert. */
export type NewItem = Pick<DatasetItemRow, 'id' | 'input' | 'expected_output' | 'metadata' | 'bytes'> &
  Partial<DatasetSource>

/** Inserts items of a dataset in one statement; the caller holds the row lock of the dataset. */
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

/** Adds to the item count and bytes of a dataset; negative values subtract. */
export const addToDatasetCounts = (
  db: Queryable,
  datasetId: string,
  { count, bytes }: { count: number; bytes: number },
) =>
  db.query(voidStatement`
    update datasets set item_count = item_count + ${count}, item_bytes = item_bytes + ${bytes} where id = ${datasetId}`)

/** Lists items of a dataset after one, in order, up to `limit` and MAX_PAGE_BYTES (index dataset_items_dataset). */
export const listItemsAfter = (
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

/** Footprint of dataset items (index dataset_items_project). */
export const datasetFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select sum(i.bytes) from dataset_items i where i.project_id = ${project}`,
})

/** Locks turns against deletion until the transaction ends; returns the existing ids (primary key). */
export const lockTurns = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`select id from generations where id = any(${sql.array([...ids], 'text')}) for key share`)

/** Locks message documents against deletion until the transaction ends; false if one does not exist (primary key). */
export const lockItemTexts = async (db: Queryable, documentIds: readonly string[]): Promise<boolean> => {
  const lockedIds = await db.anyFirst(idStatement`
    select id from documents where id = any(${sql.array([...documentIds], 'text')}) for key share`)
  return lockedIds.length === documentIds.length
}

/**
 * Returns a select of the ids of rows copied from turns and conversations of an end user (indexes of the source
 * columns).
 */
export const copiedRowIds = (table: 'dataset_items' | 'eval_results', endUser: EndUser): Fragment => {
  const rows = sql.identifier([table])
  return sql.fragment`
    select t.id from ${rows} t where t.source_actor_id = ${endUser.id}
    union select t.id from ${rows} t where t.source_conversation_id in (${endUser.conversations})
    union select t.id from ${rows} t where t.source_generation_id in (${turnsOfEndUser(endUser)})`
}

/** Lists items copied from an end user and created up to `until`. */
export const listItemsOfEndUser = (
  db: Queryable,
  endUser: EndUser,
  until: string,
  limit: number,
): Promise<readonly DatasetItemRow[]> =>
  db.any(datasetItemKind.sql`
    select ${datasetItemKind.columns} from dataset_items t
    where t.id in (${copiedRowIds('dataset_items', endUser)}) and t.project_id = ${endUser.project_id}
      and t.created_at <= ${until}::timestamptz
    limit ${limit}`)

const removedRow = sql.type(z.strictObject({ dataset_id: z.string(), count: z.int(), bytes: z.int() }))

/** Locks datasets by id. */
export const lockDatasets = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`
    select from datasets where id = any(${sql.array([...ids], 'text')}) order by id for update`)

/** Deletes items; returns the number of deleted items and their bytes by dataset. */
export const deleteItems = (db: Queryable, ids: readonly string[]) =>
  db.any(removedRow`
    with gone as (
      delete from dataset_items where id = any(${sql.array([...ids], 'text')}) returning dataset_id, bytes)
    select dataset_id, count(*) as count, sum(bytes)::bigint as bytes from gone group by dataset_id`)

/** Changes the source actor of items (index dataset_items_source_actor). */
export const reassignItems = (db: Queryable, from: string, to: string) =>
  db.query(voidStatement`update dataset_items set source_actor_id = ${to} where source_actor_id = ${from}`)
