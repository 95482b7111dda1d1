import { Readable } from 'node:stream'
import { z } from 'zod'
import { MAX_PAGE_BYTES } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, result, streamResult } from '../../core/api/operation.ts'
import { addItems, checkItem, itemBytes, lockAndReserve, newItem } from './add.ts'
import { inBatches } from './batches.ts'
import { csvHeader, csvLines, ITEM_FORMATS, jsonLine, MEDIA_TYPES } from './item-files.ts'
import {
  DatasetImportInput,
  DatasetItemLine,
  type DatasetItemRow,
  type DatasetRow,
  datasetKind,
  ImportResult,
} from './model.ts'
import { receiveItems, Spool } from './spool.ts'
import { insertDatasetItems, itemsAfter } from './store.ts'

/** Items of a dataset in bulk, in and out. */

const tag = 'Datasets'
const path = '/datasets/{dataset_id}/items'

/** Items that are written, or read, with one statement, as far as their bytes allow. */
const BATCH = 200

const FileInput = z
  .strictObject({
    file: z
      .custom<Spool>(value => value instanceof Spool, 'must be a file of items')
      .meta({ type: 'string', format: 'binary' })
      .describe('CSV with the columns input, expected_output and metadata, or one item as JSON a line'),
  })
  .meta({ id: 'DatasetItemsFile' })

/** Writes the items of a file, all of them in one transaction. */
async function importFile({
  tx,
  services,
  resource,
  body: { file },
}: Context<unknown, z.output<typeof FileInput>, DatasetRow>): Promise<{ created: number; ids: string[] }> {
  const dataset = await lockAndReserve(tx, services, resource.id, file)
  const ids: string[] = []
  for await (const batch of inBatches(file.items(), BATCH, itemBytes)) {
    const items = batch.map(newItem)
    await insertDatasetItems(tx, dataset, items)
    for (const { id } of items) ids.push(id)
  }
  return { created: ids.length, ids }
}

/** The items of a dataset as pieces of a file; pages are read as the client takes them. */
async function* exported(
  { services, resource, recheck }: Pick<Context<unknown, undefined, DatasetRow>, 'services' | 'resource' | 'recheck'>,
  format: (typeof ITEM_FORMATS)[number],
): AsyncGenerator<string> {
  if (format === 'csv') yield csvHeader
  let last: DatasetItemRow | null = null
  for (;;) {
    const items: readonly DatasetItemRow[] = await itemsAfter(services.pool, resource.id, last, BATCH)
    if (items.length === 0) return
    for (const one of items) yield format === 'csv' ? csvLines([one]) : `${JSON.stringify(jsonLine(one))}\n`
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
    summary: 'Add many items to a dataset, all or none',
    description: 'The whole body is checked before anything is stored.',
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
    summary: 'Add the items of a CSV or JSONL file to a dataset, all or none',
    description:
      'The body is the file, read as it arrives. CSV begins with a line that names its columns: `input` (a text that the user says, or messages as JSON), `expected_output` and `metadata` (JSON). What is wrong is named by line and field, such as `lines[3].metadata`.',
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
    summary: 'Stream the items of a dataset as a file, oldest first',
    description:
      'What an import of files takes. In CSV a text that programs for tables would take for a formula begins with an apostrophe, which an import takes off again.',
    tag,
    action: 'evaluations:ListDatasets',
    query: z.object({
      format: z.enum(ITEM_FORMATS).default('jsonl').describe('`csv` or `jsonl`, which is the default'),
    }),
    answers: { 200: DatasetItemLine },
    produces: MEDIA_TYPES.jsonl,
    alsoProduces: { [MEDIA_TYPES.csv]: `${csvHeader}Where is my order 1042?,It left on Monday.,{}\r\n` },
    internal: true,
    async run(context) {
      const { format } = context.query
      return streamResult(MEDIA_TYPES[format], Readable.from(exported(context, format), { objectMode: false }), {
        'Content-Disposition': `attachment; filename="${context.resource.id}.${format}"`,
      })
    },
  }),
]
