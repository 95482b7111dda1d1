import { z } from 'zod'
import { describedField } from '#automation/orchestrations/definition/fields.ts'
import { Author } from '#core/api/authors.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { versionLabel } from '#core/resources/version.ts'
import { StepShape } from './fields.ts'

const anObject = z.record(z.string(), z.unknown())

const plain = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(20_000).nullable().describe('Description of the playbook, in Markdown'),
  steps: z.array(StepShape).describe('Steps in order. 1 to 100.'),
  resolve_case: z.boolean().describe('Whether a completed execution resolves its case. Default true.'),
}

const schema = (about: string) => describedField({ about, schema: anObject.nullable() })

/** Invalid values of these fields are reported together with all other problems of the playbook. */
const fields = {
  ...plain,
  case_schema: schema('JSON Schema (draft 2020-12) of the `fields` of a case, checked when an execution starts'),
  input_schema: schema('JSON Schema (draft 2020-12) of the input of an execution'),
  outcome: describedField({
    about: 'Outcome of a completed execution: text, or an expression that returns text. At most 255 characters.',
    schema: z.unknown(),
  }),
}

export const Playbook = record('Playbook', {
  ...plain,
  case_schema: anObject.nullable().describe('JSON Schema of the fields of a case. Null for any fields.'),
  input_schema: anObject.nullable(),
  outcome: z.unknown().describe('Text or expression of the outcome. Null for none.'),
  version: z.int().describe('Number of the current version, starting at 1'),
})

export const PlaybookInput = createBody(
  'PlaybookInput',
  { ...fields, version_label: versionLabel },
  ['name', 'steps'],
  {
    name: 'Late order',
    steps: [{ key: 'call', title: 'Call the customer', type: 'manual' }],
  },
)

export const PlaybookPatch = patchBody('PlaybookPatch', { ...fields, version_label: versionLabel })

/** Body of a validation without a write. */
export const ValidatePlaybookInput = z
  .strictObject({
    project_id: projectField.describe('Project in which references are looked up'),
    steps: plain.steps,
    case_schema: fields.case_schema,
    input_schema: fields.input_schema,
    outcome: fields.outcome,
  })
  .meta({
    id: 'PlaybookValidateInput',
    example: { steps: [{ key: 'call', title: 'Call the customer', type: 'manual' }] },
  })

export const PlaybookValidation = z
  .object({
    valid: z.boolean().describe('Whether the playbook has no problems'),
    problems: z
      .array(z.object({ code: z.string(), path: z.string(), message: z.string() }))
      .describe('Problems that prevent a write, by path'),
  })
  .meta({ id: 'PlaybookValidation' })

export const playbookKind = kind({
  name: 'playbook',
  prefix: 'pbk',
  table: 'playbooks',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Playbook,
  hidden: { orchestration_id: z.string(), author: Author },
  events: ['created', 'updated', 'deleted'],
  unique: { playbooks_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type PlaybookRow = z.output<typeof playbookKind.row>
