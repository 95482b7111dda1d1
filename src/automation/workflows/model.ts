import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { versionArchive } from '../../core/api/version-archive.ts'
import { comparableWorkflow, type WorkflowDefinition } from './definition.ts'
import { StateShape, TransitionShape } from './fields.ts'

const anObject = z.record(z.string(), z.unknown())

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(2000).nullable().describe('Description of the workflow'),
  states: z.array(StateShape).describe('States of the workflow, 1 to 100, one of them initial'),
  transitions: z.array(TransitionShape).describe('Transitions between states. At most 300.'),
  payload_schema: anObject.nullable().describe('JSON Schema (draft 2020-12) of the payload of a task'),
}

const label = z.string().trim().min(1).max(255).optional()
const version_label = label.describe('Label of the version created by this write')

export const Workflow = record('Workflow', {
  ...fields,
  version: z.int().describe('Number of the current version, starting at 1'),
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
  .strictObject({ label: label.describe('Label of the new version. Default `restored from v<n>`.') })
  .meta({ id: 'WorkflowRestoreInput' })

export const WorkflowVersion = z
  .object({
    id: z.string(),
    workflow_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('Definition of the version'),
    label: z.string().nullable(),
    created_by: z
      .string()
      .nullable()
      .describe('ID of the user who created the version, or of the owner of the API key. Null for a copy.'),
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

/** Archive of all versions of workflows. */
export const workflowVersions = versionArchive({
  table: 'workflow_versions',
  owner: 'workflow_id',
  prefix: 'wfl_ver',
  record: WorkflowVersion,
  read: config => comparableWorkflow(config as WorkflowDefinition),
})
