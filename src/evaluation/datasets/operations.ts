import { containsFilter } from '#core/api/filters.ts'
import { pageOf, pageResult } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { addItems, checkItem, itemBytes, reserveCapacity } from './add.ts'
import { copySession, copyTurn } from './copy.ts'
import { copyRatedTurns } from './from-feedback.ts'
import {
  DatasetInput,
  DatasetItem,
  DatasetItemInput,
  DatasetItemPatch,
  type DatasetItemRow,
  DatasetPatch,
  datasetItemKind,
  datasetKind,
  FromFeedbackInput,
  FromGenerationInput,
  FromSessionInput,
  ImportResult,
  ItemsFromFeedback,
} from './model.ts'
import { addToDatasetCounts } from './store.ts'
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

/** Body limit for one item, including JSON escaping. */
const itemLimit = () => 8 * 1024 * 1024

const WRITE_ACTION = 'evaluations:CreateDataset'

const putDataset = {
  body: DatasetPatch,
  action: WRITE_ACTION,
  description: 'Omitted fields are unchanged.',
  raises: ['NAME_CONFLICT' as const],
}

/** @throws RESOURCE_NOT_FOUND if the item is not in the dataset of the path */
function requireMember({ params }: Pick<Context, 'params'>, item: DatasetItemRow): void {
  if (item.dataset_id !== params.dataset_id) raise('RESOURCE_NOT_FOUND', { meta: { id: item.id } })
}

const putItem = {
  body: DatasetItemPatch,
  action: WRITE_ACTION,
  description: 'Omitted fields are unchanged. Results of earlier runs keep the previous item.',
  bodyLimit: itemLimit,
  raises: ['SYSTEM_MESSAGE_NOT_ALLOWED' as const, 'QUOTA_STORAGE_EXCEEDED' as const],
  async check(next: DatasetItemRow, context: Context<any, any, any> & { stored: DatasetItemRow }) {
    const { services, tx, stored } = context
    requireMember(context, next)
    checkItem(next)
    // Already locked: every item write locks the dataset first.
    const dataset = await datasetKind.find(tx, stored.dataset_id)
    const bytes = itemBytes(next) - stored.bytes
    if (dataset && bytes !== 0) await reserveCapacity(tx, services, dataset, { count: 0, bytes })
  },
  change: (next: DatasetItemRow) => ({ ...next, bytes: itemBytes(next) }),
}

export const datasetOperations: Operation[] = [
  datasets.create({
    body: DatasetInput,
    action: WRITE_ACTION,
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
    description: 'Deletes its items, the evals that use it, and their runs and results.',
  }),
  itemOperation(datasetKind, {
    id: 'listDatasetItems',
    method: 'get',
    path: `${path}/{dataset_id}/items`,
    summary: 'List dataset items',
    description:
      'Oldest first. A page has at most 16 MiB of items; `limit` in the response is the resulting page size.',
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
    summary: 'Create a dataset item',
    description: 'Eval runs that have already started do not include the item.',
    tag,
    action: WRITE_ACTION,
    body: DatasetItemInput,
    validate: ({ body }) => checkItem(body),
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
    summary: 'Create a dataset item from a generation',
    description:
      'Copies the messages of a completed generation as input and its output as expected output. Purging the generation does not change the item; erasing the content of its end user deletes it.',
    tag,
    action: WRITE_ACTION,
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
    summary: 'Create dataset items from a session',
    description:
      'Copies replies of a session as expected output and the messages before each reply as input, all or none. Erasing the content of the end user deletes the items.',
    tag,
    action: WRITE_ACTION,
    alsoActions: ['sessions:GetSession', 'sessions:ListSessionMessages'],
    body: FromSessionInput,
    answers: { 201: ImportResult },
    raises: ['RESOURCE_NOT_FOUND', 'QUOTA_STORAGE_EXCEEDED'],
    transaction: false,
    run: async context => result(201, await copySession(context)),
  }),
  itemOperation(datasetKind, {
    id: 'createDatasetItemsFromFeedback',
    method: 'post',
    path: `${path}/{dataset_id}/items/from-feedback`,
    summary: 'Create dataset items from feedback',
    description:
      'Copies the messages of rated generations as input, one item per feedback record that matches all given filters and whose generation the caller may read, all or none. Erasing the content of the end user deletes the items.',
    tag,
    action: WRITE_ACTION,
    alsoActions: ['generations:GetGeneration', 'sessions:ListFeedback'],
    body: FromFeedbackInput,
    answers: { 201: ItemsFromFeedback },
    raises: ['QUOTA_STORAGE_EXCEEDED'],
    run: async context => result(201, await copyRatedTurns(context)),
  }),
  ...transferOperations,
  items.get({
    summary: 'Get a dataset item',
    action: 'evaluations:GetDataset',
    present: async context => {
      requireMember(context, context.resource as DatasetItemRow)
      return datasetItemKind.present(context.resource as DatasetItemRow)
    },
  }),
  items.update({ ...putItem, method: 'put', id: 'putDatasetItem', summary: 'Update a dataset item' }),
  items.update({ ...putItem, summary: 'Update a dataset item' }),
  items.remove({
    summary: 'Delete a dataset item',
    description: 'Results of earlier runs remain and keep a copy of the item.',
    action: WRITE_ACTION,
    check(row, context) {
      requireMember(context, row)
    },
    async removed(row, { tx }) {
      await addToDatasetCounts(tx, row.dataset_id, { count: -1, bytes: -row.bytes })
    },
  }),
]
