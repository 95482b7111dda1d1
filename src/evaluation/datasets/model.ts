import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { metadataBag } from '../../core/api/metadata.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { voidStatement } from '../../core/db/sql.ts'

/** A dataset is a list of examples: what an agent is asked, what it should say, and what groups and scorers go by. */

const id = z.string().min(1).max(255)

const datasetFields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(16_384).nullable().describe('What the examples are about'),
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

/** What one message of an item says, as it is stored and replayed. */
const Part = z.looseObject({ type: z.string().min(1).describe('What the part is, such as `text`') })

const Message = z.strictObject({
  role: z.string().min(1).max(64).describe('Whose message it is: `user`, `assistant` or `tool`; `system` is refused'),
  content: z
    .union([z.string(), z.array(Part).min(1).max(256)])
    .describe('Text, or parts as messages of turns have them'),
})
export type ItemTurnMessage = z.output<typeof Message>

/** Characters of an answer that an item expects. */
const MAX_EXPECTED = 1_048_576

export const itemFields = {
  input: z.array(Message).min(1).max(500).describe('Messages that the agent is asked with, oldest first'),
  expected_output: z.string().max(MAX_EXPECTED).nullable().describe('What the agent should answer; null for nothing'),
  metadata: metadataBag(64, 16)
    .nullable()
    .describe('Data of your own, which scorers read and by whose values results are grouped'),
}

/** The messages of an item as a result keeps them. */
export const askedMessages = z.array(Message).max(500)

export const DatasetItem = record(
  'DatasetItem',
  {
    dataset_id: z.string(),
    ...itemFields,
    source_generation_id: z
      .string()
      .nullable()
      .describe('Turn that it was copied from; null for one that was not, and once that is deleted'),
  },
  { project: false },
)

/** An item as a line of an export, which an import takes. */
export const DatasetItemLine = z.object(itemFields).meta({ id: 'DatasetItemLine' })

const optional = { expected_output: itemFields.expected_output.optional(), metadata: itemFields.metadata.optional() }

export const DatasetItemInput = z
  .strictObject({ input: itemFields.input, ...optional })
  .meta({ id: 'DatasetItemInput' })
export type DatasetItemInput = z.output<typeof DatasetItemInput>

export const DatasetItemPatch = patchBody('DatasetItemPatch', itemFields)

export const FromGenerationInput = z
  .strictObject({
    generation_id: id.describe('Completed turn whose messages and answer are copied'),
    expected_output: optional.expected_output.describe('In place of the answer of the turn; null for nothing'),
    metadata: optional.metadata.describe('Data of your own, kept on the item'),
  })
  .meta({ id: 'DatasetItemFromGeneration' })

export const FromSessionInput = z
  .strictObject({
    session_id: id.describe('Session whose conversation is copied'),
    replies: z
      .enum(['last', 'all'])
      .default('last')
      .describe('`last` makes one item of the last reply, `all` one of each: with what was said before it as input'),
    metadata: optional.metadata.describe('Data of your own, kept on each item'),
  })
  .meta({ id: 'DatasetItemsFromSession' })

/** Items of one import as JSON. */
const MAX_IMPORTED = 500

export const DatasetImportInput = z
  .strictObject({
    items: z
      .array(DatasetItemInput)
      .min(1)
      .max(MAX_IMPORTED)
      .describe(`1 to ${MAX_IMPORTED} items, each as one that is created alone`),
  })
  .meta({ id: 'DatasetImportInput' })

export const ImportResult = z
  .object({
    created: z.int().describe('How many items were made'),
    ids: z.array(z.string()).describe('IDs of the new items, in order'),
  })
  .meta({ id: 'DatasetItemsCreated' })

export const datasetItemKind = kind({
  name: 'dataset_item',
  prefix: 'dsit',
  table: 'dataset_items',
  references: [{ kind: 'dataset', column: 'dataset_id', on_delete: 'cascade' }],
  record: DatasetItem,
  hidden: { project_id: z.string(), bytes: z.int() },
  // Its writers count it in the dataset.
  lockFirst: (db, id) =>
    db.query(voidStatement`
      select from datasets where id = (select i.dataset_id from dataset_items i where i.id = ${id}) for update`),
  authorize: ({ dataset_id }) => ({ type: 'dataset', id: dataset_id }),
})
export type DatasetItemRow = z.output<typeof datasetItemKind.row>
