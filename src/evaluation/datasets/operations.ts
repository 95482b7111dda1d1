import { raise } from '../../core/api/errors.ts'
import { containsFilter } from '../../core/api/filters.ts'
import { pageOf, pageResult } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { addItems, checkItem, itemBytes, reserveCapacity } from './add.ts'
import { copySession, copyTurn } from './copy.ts'
import { removeDataset } from './delete-hooks.ts'
import {
  DatasetInput,
  DatasetItem,
  DatasetItemInput,
  DatasetItemPatch,
  type DatasetItemRow,
  DatasetPatch,
  datasetItemKind,
  datasetKind,
  FromGenerationInput,
  FromSessionInput,
  ImportResult,
} from './model.ts'
import { addToCount } from './store.ts'
import { transferOperations } from './transfer.ts'

const tag = 'Datasets'
const path = '/datasets'
const datasets = resource(datasetKind, { path, tag, module: 'evaluations' })
const items = resource(datasetItemKind, {
  path: '/datasets/{dataset_id}/items',
  tag,
  module: 'evaluations',
  param: 'item_id',
})

/** Bytes of a body with one item: what it may take, escaped. */
const itemLimit = () => 8 * 1024 * 1024

/** What writes an item. */
const WRITES = 'evaluations:CreateDataset'

const putDataset = {
  body: DatasetPatch,
  action: WRITES,
  description: 'What is not given stays as it is.',
  raises: ['NAME_CONFLICT' as const],
}

/** Raises RESOURCE_NOT_FOUND for an item of another dataset than the path names. */
function requireMember({ params }: Pick<Context, 'params'>, item: DatasetItemRow): void {
  if (item.dataset_id !== params.dataset_id) raise('RESOURCE_NOT_FOUND', { meta: { id: item.id } })
}

const putItem = {
  body: DatasetItemPatch,
  action: WRITES,
  description: 'What is not given stays as it is; runs that were made with the item keep what it was.',
  bodyLimit: itemLimit,
  raises: ['SYSTEM_MESSAGE_NOT_ALLOWED' as const, 'QUOTA_STORAGE_EXCEEDED' as const],
  async check(next: DatasetItemRow, context: Context<any, any, any> & { stored: DatasetItemRow }) {
    const { services, tx, stored } = context
    requireMember(context, next)
    checkItem(next)
    // Its lock is held: whoever changes an item takes it first.
    const dataset = await datasetKind.find(tx, stored.dataset_id)
    const bytes = itemBytes(next) - stored.bytes
    if (dataset && bytes !== 0) await reserveCapacity(tx, services, dataset, { count: 0, bytes })
  },
  change: (next: DatasetItemRow) => ({ ...next, bytes: itemBytes(next) }),
}

export const datasetOperations: Operation[] = [
  datasets.create({
    body: DatasetInput,
    action: WRITES,
    raises: ['NAME_CONFLICT'],
    make: ({ tx, body, project }) =>
      datasetKind.insert(tx, { ...body, description: body.description ?? null, project_id: project }),
  }),
  // datasets_project serves the order.
  datasets.list({ filters: { name: containsFilter('name') } }),
  datasets.get(),
  datasets.update({ ...putDataset, method: 'put', id: 'putDataset' }),
  datasets.update(putDataset),
  datasets.remove({
    description: 'With its items, and with the evals that use it, their runs and results.',
    check: (row, { tx }) => removeDataset(tx, row),
  }),
  itemOperation(datasetKind, {
    id: 'listDatasetItems',
    method: 'get',
    path: `${path}/{dataset_id}/items`,
    summary: 'List the items of a dataset, oldest first',
    description: 'A page ends before 16 MiB of items: `limit` says how many it was cut to.',
    tag,
    action: 'evaluations:ListDatasets',
    paged: true,
    answers: { 200: pageOf(DatasetItem) },
    // Index dataset_items_dataset.
    run: context =>
      pageResult<DatasetItemRow>(context, {
        columns: datasetItemKind.columns,
        from: sql.fragment`dataset_items t`,
        rows: sql.fragment`t.dataset_id = ${context.resource.id}`,
        kept: sql.fragment`coalesce((select item_count from datasets where id = ${context.resource.id}), 0)::bigint`,
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.created_at, t.id`,
        key: sql.fragment`t.id`,
        bytes: sql.fragment`t.bytes`,
        present: datasetItemKind.present,
      }),
  }),
  itemOperation(datasetKind, {
    id: 'createDatasetItem',
    method: 'post',
    path: `${path}/{dataset_id}/items`,
    summary: 'Add an item to a dataset',
    description: 'Runs of evals that have begun do not see it.',
    tag,
    action: WRITES,
    body: DatasetItemInput,
    bodyLimit: itemLimit,
    answers: { 201: DatasetItem },
    raises: ['SYSTEM_MESSAGE_NOT_ALLOWED', 'QUOTA_STORAGE_EXCEEDED'],
    async run({ tx, services, resource: dataset, body }) {
      checkItem(body)
      const [{ id }] = await addItems(tx, services, dataset.id, [body])
      return result(201, datasetItemKind.present((await datasetItemKind.find(tx, id)) as DatasetItemRow))
    },
  }),
  itemOperation(datasetKind, {
    id: 'createDatasetItemFromGeneration',
    method: 'post',
    path: `${path}/{dataset_id}/items/from-generation`,
    summary: 'Copy a completed turn into a dataset',
    description:
      'Its messages become the input, its answer what is expected. Purging the turn leaves the copy as it is; erasing the content of its end user deletes it.',
    tag,
    action: WRITES,
    alsoActions: ['generations:GetGeneration'],
    body: FromGenerationInput,
    answers: { 201: DatasetItem },
    raises: [
      'GENERATION_NOT_FOUND',
      'GENERATION_NOT_COMPLETED',
      'GENERATION_CONTENT_UNAVAILABLE',
      'QUOTA_STORAGE_EXCEEDED',
    ],
    transaction: false,
    run: async context => result(201, datasetItemKind.present(await copyTurn(context))),
  }),
  itemOperation(datasetKind, {
    id: 'createDatasetItemsFromSession',
    method: 'post',
    path: `${path}/{dataset_id}/items/from-session`,
    summary: 'Copy replies of a session into a dataset',
    description:
      'What was said before a reply becomes the input, the reply what is expected; all items or none. Erasing the content of the end user deletes them.',
    tag,
    action: WRITES,
    alsoActions: ['sessions:GetSession', 'sessions:ListSessionMessages'],
    body: FromSessionInput,
    answers: { 201: ImportResult },
    raises: ['RESOURCE_NOT_FOUND', 'QUOTA_STORAGE_EXCEEDED'],
    transaction: false,
    run: async context => result(201, await copySession(context)),
  }),
  ...transferOperations,
  items.get({
    summary: 'Read an item of a dataset',
    action: 'evaluations:GetDataset',
    present: async context => {
      requireMember(context, context.resource as DatasetItemRow)
      return datasetItemKind.present(context.resource as DatasetItemRow)
    },
  }),
  items.update({ ...putItem, method: 'put', id: 'putDatasetItem', summary: 'Change an item of a dataset' }),
  items.update({ ...putItem, summary: 'Change an item of a dataset' }),
  items.remove({
    summary: 'Delete an item of a dataset',
    description: 'Results of runs that were made with it stay, with what it was.',
    action: WRITES,
    check(row, context) {
      requireMember(context, row)
    },
    async removed(row, { tx }) {
      await addToCount(tx, row.dataset_id, { count: -1, bytes: -row.bytes })
    },
  }),
]
