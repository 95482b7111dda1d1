import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { versionArchive } from '../../core/api/version-archive.ts'
import { comparableWorkflow, type WorkflowDefinition } from './definition.ts'
import { StateShape, TransitionShape } from './fields.ts'

/** A workflow is a state machine: the states that a task may be in, and the transitions between them. */

const anObject = z.record(z.string(), z.unknown())

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(2000).nullable().describe('What it is for'),
  states: z.array(StateShape).describe('States, 1 to 100, one of them initial'),
  transitions: z.array(TransitionShape).describe('Moves between states, at most 300'),
  payload_schema: anObject.nullable().describe('JSON Schema (draft 2020-12) that the payload of a task has to satisfy'),
}

const label = z.string().trim().min(1).max(255).optional()
const version_label = label.describe('Label of the version that the write makes')

export const Workflow = record('Workflow', {
  ...fields,
  version: z.int().describe('Counts the changes of the definition, from 1'),
})

export const WorkflowInput = createBody(
  'WorkflowInput',
  { ...fields, version_label },
  ['name', 'states', 'transitions'],
  {
    name: 'Tickets',
    states: [
      { name: 'open', initial: true },
      { name: 'done', terminal: true },
    ],
    transitions: [{ name: 'close', from: ['open'], to: 'done' }],
  },
)

export const WorkflowPatch = patchBody('WorkflowPatch', { ...fields, version_label })

export const RestoreWorkflowInput = z
  .strictObject({ label: label.describe('Label of the new version; default `restored from v<n>`') })
  .meta({ id: 'WorkflowRestoreInput' })

export const WorkflowVersion = z
  .object({
    id: z.string(),
    workflow_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('States, transitions and payload_schema as they stood'),
    label: z.string().nullable(),
    created_by: z.string().nullable().describe('User who wrote it; of a key its owner; null for a copy'),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'WorkflowVersion' })

const declared = kind({
  name: 'workflow',
  prefix: 'wfl',
  table: 'workflows',
  notFound: 'WORKFLOW_NOT_FOUND',
  missing: 'WORKFLOW_NOT_FOUND',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Workflow,
  hidden: { author: Author },
  events: ['created', 'updated', 'deleted'],
  unique: { workflows_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type WorkflowRow = z.output<typeof declared.row>

export const workflowKind = declared

/** Every definition that workflows have had. */
export const workflowVersions = versionArchive({
  table: 'workflow_versions',
  owner: 'workflow_id',
  prefix: 'wfl_ver',
  record: WorkflowVersion,
  read: config => comparableWorkflow(config as WorkflowDefinition),
})
