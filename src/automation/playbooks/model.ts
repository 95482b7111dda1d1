import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '../../core/api/record.ts'
import { versionArchive } from '../../core/api/version-archive.ts'
import { describedField } from '../orchestrations/fields.ts'
import { comparablePlaybook, type PlaybookDefinition } from './definition.ts'
import { StepShape } from './fields.ts'

/** A playbook is a versioned, readable procedure of typed steps. */

const anObject = z.record(z.string(), z.unknown())

const plain = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(20_000).nullable().describe('What it is for, as Markdown'),
  steps: z.array(StepShape).describe('Steps in the order in which they are taken, 1 to 100'),
  resolve_case: z.boolean().describe('Whether a completed execution resolves its case, default true'),
}

const schema = (about: string) => describedField({ about, schema: anObject.nullable() })

/** Wrong values of these are reported with all else that is wrong with the playbook. */
const fields = {
  ...plain,
  case_schema: schema('JSON Schema (draft 2020-12) that `fields` of a case has to satisfy when an execution starts'),
  input_schema: schema('JSON Schema (draft 2020-12) that the input of an execution has to satisfy'),
  outcome: describedField({
    about: 'What a completed execution came to: a text, or an expression that gives one, at most 255 characters',
    schema: z.unknown(),
  }),
}

const label = z.string().trim().min(1).max(255).optional()
const version_label = label.describe('Label of the version that the write makes')

export const Playbook = record('Playbook', {
  ...plain,
  case_schema: anObject.nullable().describe('JSON Schema of the fields of a case; null for any'),
  input_schema: anObject.nullable(),
  outcome: z.unknown().describe('A text or an expression; null for none'),
  version: z.int().describe('Counts the changes of the procedure, from 1'),
})

export const PlaybookInput = createBody('PlaybookInput', { ...fields, version_label }, ['name', 'steps'], {
  name: 'Late order',
  steps: [{ key: 'call', title: 'Call the customer', type: 'manual' }],
})

export const PlaybookPatch = patchBody('PlaybookPatch', { ...fields, version_label })

/** What is validated without being written. */
export const ValidatePlaybookInput = z
  .strictObject({
    project_id: projectField.describe('Project in which what the steps name is looked up'),
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
    valid: z.boolean().describe('Whether there are no problems'),
    problems: z
      .array(z.object({ code: z.string(), path: z.string(), message: z.string() }))
      .describe('What refuses a write, by its path'),
  })
  .meta({ id: 'PlaybookValidation' })

export const RestorePlaybookInput = z
  .strictObject({ label: label.describe('Label of the new version; default `restored from v<n>`') })
  .meta({ id: 'PlaybookRestoreInput' })

export const PlaybookVersion = z
  .object({
    id: z.string(),
    playbook_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('The procedure as it stood'),
    label: z.string().nullable(),
    created_by: z.string().nullable().describe('User who wrote it; of a key its owner; null for a copy'),
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

/** Every procedure that playbooks have had. */
export const playbookVersions = versionArchive({
  table: 'playbook_versions',
  owner: 'playbook_id',
  prefix: 'pbk_ver',
  record: PlaybookVersion,
  read: config => comparablePlaybook(config as unknown as PlaybookDefinition),
})
