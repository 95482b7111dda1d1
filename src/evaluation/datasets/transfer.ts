import { Readable } from 'node:stream'
import { z } from 'zod'
import { MAX_PAGE_BYTES } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, result, streamResult } from '#core/api/operation.ts'
import { addItems, checkItem, itemBytes, lockAndReserve, newItem } from './add.ts'
import { csvHeader, csvLines, ITEM_FORMATS, jsonLine, MEDIA_TYPES } from './item-files.ts'
import {
  DatasetImportInput,
  DatasetItemLine,
  type DatasetItemRow,
  type DatasetRow,
  datasetKind,
  ImportResult,
} from './model.ts'
import { ItemSpool, receiveItems } from './spool.ts'
import { insertDatasetItems, listItemsAfter } from './store.ts'

/**
 * Groups values into batches of at most `maxCount` values and MAX_PAGE_BYTES; a value larger than that forms a batch
 * alone.
 */
async function* batchBySize<T>(
  values: AsyncIterable<T> | Iterable<T>,
  maxCount: number,
  bytesOf: (value: T) => number,
): AsyncGenerator<T[]> {
  let batch: T[] = []
  let bytes = 0
  for await (const value of values) {
    const size = bytesOf(value)
    if (batch.length === maxCount || (batch.length > 0 && bytes + size > MAX_PAGE_BYTES)) {
      yield batch
      batch = []
      bytes = 0
    }
    batch.push(value)
    bytes += size
  }
  if (batch.length > 0) yield batch
}

const tag = 'Datasets'
const path = '/datasets/{dataset_id}/items'

/** Most items per statement. */
const BATCH = 200

const FileInput = z
  .strictObject({
    file: z
      .custom<ItemSpool>(value => value instanceof ItemSpool, 'must be a file of items')
      .meta({ type: 'string', format: 'binary' })
      .describe('CSV with the columns input, expected_output and metadata, or one JSON item per line'),
  })
  .meta({ id: 'DatasetItemsFile' })

/** Writes all items of a file in one transaction. */
async function importFile({
  tx,
  services,
  resource,
  body: { file },
}: Context<unknown, z.output<typeof FileInput>, DatasetRow>): Promise<{ created: number; ids: string[] }> {
  const dataset = await lockAndReserve(tx, services, resource.id, file)
  const ids: string[] = []
  for await (const batch of batchBySize(file.items(), BATCH, itemBytes)) {
    const items = batch.map(newItem)
    await insertDatasetItems(tx, dataset, items)
    for (const { id } of items) ids.push(id)
  }
  return { created: ids.length, ids }
}

/** Formats the items of a dataset as a file; pages are read as the client consumes them. */
async function* exportItems(
  { services, resource, recheck }: Pick<Context<unknown, undefined, DatasetRow>, 'services' | 'resource' | 'recheck'>,
  format: (typeof ITEM_FORMATS)[number],
): AsyncGenerator<string> {
  if (format === 'csv') yield csvHeader
  let last: DatasetItemRow | null = null
  for (;;) {
    const items: readonly DatasetItemRow[] = await listItemsAfter(services.pool, resource.id, last, BATCH)
    if (items.length === 0) return
    for (const item of items) yield format === 'csv' ? csvLines([item]) : `${JSON.stringify(jsonLine(item))}\n`
    const bytes = items.reduce((total, item) => total + item.bytes, 0)
    if (items.length < BATCH && bytes < MAX_PAGE_BYTES) return
    last = items[items.length - 1]
    await recheck()
  }
}

export const transferOperations: Operation[] = [
  itemOperation(datasetKind, {
    id: 'importDatasetItems',
    method: 'post',
    path: `${path}/import`,
    summary: 'Import dataset items',
    description: 'Adds all items or none; the whole body is validated first.',
    tag,
    action: 'evaluations:CreateDataset',
    body: DatasetImportInput,
    bodyLimit: () => 32 * 1024 * 1024,
    answers: { 201: ImportResult },
    raises: ['SYSTEM_MESSAGE_NOT_ALLOWED', 'QUOTA_STORAGE_EXCEEDED'],
    async run({ tx, services, resource, body }) {
      for (const [index, item] of body.items.entries()) checkItem(item, `items[${index}].input`)
      const items = await addItems(tx, services, resource.id, body.items)
      return result(201, { created: items.length, ids: items.map(({ id }) => id) })
    },
  }),
  itemOperation(datasetKind, {
    id: 'importDatasetFile',
    method: 'post',
    path: `${path}/import-file`,
    summary: 'Import a file of dataset items',
    description:
      'The body is a CSV or JSONL file; all items are added or none. The first line of a CSV file contains the column names: `input` (text of a user message, or messages as JSON), `expected_output` and `metadata` (JSON). Problems are reported by line and field, such as `lines[3].metadata`.',
    tag,
    action: 'evaluations:CreateDataset',
    consumes: [MEDIA_TYPES.csv, MEDIA_TYPES.jsonl],
    receive: receiveItems,
    body: FileInput,
    answers: { 201: ImportResult },
    raises: ['QUOTA_STORAGE_EXCEEDED', 'REQUEST_REJECTED'],
    internal: true,
    run: async context => result(201, await importFile(context)),
  }),
  itemOperation(datasetKind, {
    id: 'exportDatasetItems',
    method: 'get',
    path: `${path}/export`,
    summary: 'Export dataset items',
    description:
      'Oldest first, in the format of file imports. In CSV, a text that spreadsheets would interpret as a formula is prefixed with an apostrophe, which an import removes.',
    tag,
    action: 'evaluations:ListDatasets',
    query: z.object({
      format: z.enum(ITEM_FORMATS).default('jsonl').describe('File format. Default `jsonl`.'),
    }),
    answers: { 200: DatasetItemLine },
    produces: MEDIA_TYPES.jsonl,
    alsoProduces: { [MEDIA_TYPES.csv]: `${csvHeader}Where is my order 1042?,It left on Monday.,{}\r\n` },
    internal: true,
    async run(context) {
      const { format } = context.query
      return streamResult(MEDIA_TYPES[format], Readable.from(exportItems(context, format), { objectMode: false }), {
        'Content-Disposition': `attachment; filename="${context.resource.id}.${format}"`,
      })
    },
  }),
]
