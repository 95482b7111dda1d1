import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { timeOrDateInput } from '#core/api/lists.ts'
import { metadataBag } from '#core/api/metadata.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { voidStatement } from '#core/db/sql.ts'

/** A dataset is a list of items: input messages, expected output, and metadata for groups and scorers. */

const id = z.string().min(1).max(255)

const datasetFields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(16_384).nullable().describe('Description of the dataset'),
}

export const Dataset = record('Dataset', datasetFields)

export const DatasetInput = createBody('DatasetInput', datasetFields, ['name'], { name: 'Return questions' })

export const DatasetPatch = patchBody('DatasetPatch', datasetFields)

export const datasetKind = kind({
  name: 'dataset',
  prefix: 'dset',
  table: 'datasets',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Dataset,
  hidden: { item_count: z.int(), item_bytes: z.int() },
  events: ['created', 'updated', 'deleted'],
  unique: { datasets_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type DatasetRow = z.output<typeof datasetKind.row>

/** A message of an item, as stored and replayed. */
const Part = z.looseObject({ type: z.string().min(1).describe('Type of the part, such as `text`') })

const Message = z.strictObject({
  role: z.string().min(1).max(64).describe('Role: `user`, `assistant` or `tool`; `system` is not allowed'),
  content: z.union([z.string(), z.array(Part).min(1).max(256)]).describe('Text, or parts as in messages of turns'),
})
export type ItemTurnMessage = z.output<typeof Message>

/** Most characters of an expected output. */
const MAX_EXPECTED_CHARS = 1_048_576

const itemFields = {
  input: z.array(Message).min(1).max(500).describe('Input messages for the agent, oldest first'),
  expected_output: z
    .string()
    .max(MAX_EXPECTED_CHARS)
    .nullable()
    .describe('Expected output of the agent. Null without one.'),
  metadata: metadataBag(64, 16).nullable().describe('Custom data, available to scorers and for grouping results'),
}

/** Messages of an item, as stored in a result. */
export const resultMessages = z.array(Message).max(500)

export const DatasetItem = record(
  'DatasetItem',
  {
    dataset_id: z.string(),
    ...itemFields,
    source_generation_id: z
      .string()
      .nullable()
      .describe(
        'ID of the generation that the item was copied from. Null for other items and after the generation was deleted.',
      ),
  },
  { project: false },
)

/** A line of an export, which can be imported. */
export const DatasetItemLine = z.object(itemFields).meta({ id: 'DatasetItemLine' })

const optional = { expected_output: itemFields.expected_output.optional(), metadata: itemFields.metadata.optional() }

export const DatasetItemInput = z
  .strictObject({ input: itemFields.input, ...optional })
  .meta({ id: 'DatasetItemInput' })
export type DatasetItemInput = z.output<typeof DatasetItemInput>

export const DatasetItemPatch = patchBody('DatasetItemPatch', itemFields)

export const FromGenerationInput = z
  .strictObject({
    generation_id: id.describe('ID of a completed generation'),
    expected_output: optional.expected_output.describe(
      'Expected output. Defaults to the output of the generation; null for none.',
    ),
    metadata: optional.metadata.describe('Custom data of the item'),
  })
  .meta({ id: 'DatasetItemFromGeneration' })

export const FromSessionInput = z
  .strictObject({
    session_id: id.describe('ID of the session'),
    replies: z
      .enum(['last', 'all'])
      .default('last')
      .describe(
        '`last` – one item for the last reply; `all` – one item per reply. The input is the messages before the reply. Default `last`.',
      ),
    metadata: optional.metadata.describe('Custom data of each item'),
  })
  .meta({ id: 'DatasetItemsFromSession' })

const MAX_IMPORTED = 500

export const FromFeedbackInput = z
  .strictObject({
    rating: z.literal([1, -1]).nullish().describe('Rating of the feedback'),
    label: z.string().min(1).max(40).nullish().describe('Label that the feedback has'),
    from: timeOrDateInput.nullish().describe('Feedback created at this time or later'),
    to: timeOrDateInput.nullish().describe('Feedback created at this time or earlier'),
    limit: z
      .int()
      .min(1)
      .max(MAX_IMPORTED)
      .default(100)
      .describe(`Maximum number of feedback records, newest first. Default 100, at most ${MAX_IMPORTED}.`),
    expected_output: z
      .literal('comment')
      .nullish()
      .describe('`comment` – the comment is the expected output; requires `sessions:ListFeedback`. Default none.'),
  })
  .meta({ id: 'DatasetItemsFromFeedback', example: { rating: -1, limit: 50 } })

export const DatasetImportInput = z
  .strictObject({
    items: z.array(DatasetItemInput).min(1).max(MAX_IMPORTED).describe(`1 to ${MAX_IMPORTED} items`),
  })
  .meta({ id: 'DatasetImportInput' })

export const ImportResult = z
  .object({
    created: z.int().describe('Number of created items'),
    ids: z.array(z.string()).describe('IDs of the new items, in order'),
  })
  .meta({ id: 'DatasetItemsCreated' })

export const ItemsFromFeedback = ImportResult.extend({
  skipped: z.int().describe('Number of feedback records whose generation has no content'),
}).meta({ id: 'DatasetItemsFromFeedbackCreated' })

export const datasetItemKind = kind({
  name: 'dataset_item',
  prefix: 'dsit',
  table: 'dataset_items',
  references: [{ kind: 'dataset', column: 'dataset_id', on_delete: 'cascade' }],
  record: DatasetItem,
  hidden: { project_id: z.string(), bytes: z.int() },
  // Writers of an item also update the counts of its dataset.
  lockFirst: (db, id) =>
    db.query(voidStatement`
      select from datasets where id = (select i.dataset_id from dataset_items i where i.id = ${id}) for update`),
  authorize: ({ dataset_id }) => ({ type: 'dataset', id: dataset_id }),
})
export type DatasetItemRow = z.output<typeof datasetItemKind.row>
