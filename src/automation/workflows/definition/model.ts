import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { versionLabel } from '#core/resources/version.ts'
import { versioned } from '#core/resources/versioned.ts'
import { comparableWorkflow, workflowFields } from './definition.ts'
import { StateShape, TransitionShape } from './fields.ts'

const anObject = z.record(z.string(), z.unknown())

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(2000).nullable().describe('Description of the workflow'),
  states: z.array(StateShape).describe('States of the workflow, 1 to 100, one of them initial'),
  transitions: z.array(TransitionShape).describe('Transitions between states. At most 300.'),
  payload_schema: anObject.nullable().describe('JSON Schema (draft 2020-12) of the payload of a task'),
}

export const Workflow = record('Workflow', {
  ...fields,
  version: z.int().describe('Number of the current version, starting at 1'),
})

export const WorkflowInput = createBody(
  'WorkflowInput',
  { ...fields, version_label: versionLabel },
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

export const WorkflowPatch = patchBody('WorkflowPatch', { ...fields, version_label: versionLabel })

export const workflowKind = kind({
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
export type WorkflowRow = z.output<typeof workflowKind.row>

export const workflowVersions = versioned({
  kind: workflowKind,
  prefix: 'wfl_ver',
  fields: workflowFields,
  comparable: comparableWorkflow,
})
