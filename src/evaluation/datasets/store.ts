import { MOST_BYTES } from '../../core/api/lists.ts'
import { type Fragment, identifying, type Queryable, sql, statement } from '../../core/db/sql.ts'
import { type DatasetItemRow, type DatasetRow, datasetItemKind } from './model.ts'

/** An item to be written. */
export type NewItem = Pick<DatasetItemRow, 'id' | 'input' | 'expected_output' | 'metadata' | 'bytes'> & {
  source_generation_id?: string | null
}

/** Adds items of one dataset, whose row the caller holds, in one statement. */
export const insertItems = (
  db: Queryable,
  { id, project_id }: Pick<DatasetRow, 'id' | 'project_id'>,
  items: readonly NewItem[],
) =>
  db.query(statement`
    insert into dataset_items (id, project_id, dataset_id, input, expected_output, metadata, bytes, source_generation_id)
    select i.id, ${project_id}, ${id}, i.input, i.expected_output, i.metadata, i.bytes, i.source_generation_id
    from json_to_recordset(${JSON.stringify(items)}::json) as i (id text, input json, expected_output text, metadata json,
      bytes bigint, source_generation_id text)`)

/** Counts items of a dataset, and their bytes, in or out. */
export const addToCount = (db: Queryable, datasetId: string, { count, bytes }: { count: number; bytes: number }) =>
  db.query(statement`
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
      where upto - bytes < ${MOST_BYTES})
    order by t.created_at, t.id`)

/** What items of datasets take, by dataset_items_project. */
export const datasetFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select sum(i.bytes) from dataset_items i where i.project_id = ${project}`,
})

/** Those of some turns that exist, kept from being deleted until the transaction ends. By the primary key. */
export const heldTurns = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(identifying`select id from generations where id = any(${sql.array([...ids], 'text')}) for key share`)
