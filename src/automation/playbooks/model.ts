import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '../../core/api/record.ts'
import { versionArchive } from '../../core/api/version-archive.ts'
import { describedField } from '../orchestrations/fields.ts'
import { comparablePlaybook, type PlaybookDefinition } from './definition.ts'
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

const label = z.string().trim().min(1).max(255).optional()
const version_label = label.describe('Label of the version created by this write')

export const Playbook = record('Playbook', {
  ...plain,
  case_schema: anObject.nullable().describe('JSON Schema of the fields of a case. Null for any fields.'),
  input_schema: anObject.nullable(),
  outcome: z.unknown().describe('Text or expression of the outcome. Null for none.'),
  version: z.int().describe('Number of the current version, starting at 1'),
})

export const PlaybookInput = createBody('PlaybookInput', { ...fields, version_label }, ['name', 'steps'], {
  name: 'Late order',
  steps: [{ key: 'call', title: 'Call the customer', type: 'manual' }],
})

export const PlaybookPatch = patchBody('PlaybookPatch', { ...fields, version_label })

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

export const RestorePlaybookInput = z
  .strictObject({ label: label.describe('Label of the new version. Default `restored from v<n>`.') })
  .meta({ id: 'PlaybookRestoreInput' })

export const PlaybookVersion = z
  .object({
    id: z.string(),
    playbook_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('Definition of the version'),
    label: z.string().nullable(),
    created_by: z
      .string()
      .nullable()
      .describe('ID of the user who created the version, or of the owner of the API key. Null for a copy.'),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'PlaybookVersion' })

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

/** Archive of all versions of playbooks. */
export const playbookVersions = versionArchive({
  table: 'playbook_versions',
  owner: 'playbook_id',
  prefix: 'pbk_ver',
  record: PlaybookVersion,
  read: config => comparablePlaybook(config as unknown as PlaybookDefinition),
})
