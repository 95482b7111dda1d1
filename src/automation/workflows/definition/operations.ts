import { containsFilter } from '#core/api/filters.ts'
import type { Context, Operation } from '#core/api/operation.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { CALL_TOOL, requireValidWorkflow, schemaProblems, validateDefinition } from './check.ts'
import { workflowFields } from './definition.ts'
import { WorkflowInput, WorkflowPatch, type WorkflowRow, workflowKind, workflowVersions } from './model.ts'

const workflows = resource(workflowKind, { path: '/workflows', tag: 'Workflows', versions: workflowVersions })

const refusals = ['WORKFLOW_VALIDATION_FAILED', 'NAME_CONFLICT'] as const

/** Refuses a changed definition as on creation; unchanged states and transitions require no permissions again. */
const checkDefinition = (
  next: WorkflowRow,
  { stored, ...context }: Pick<Context, 'tx' | 'services' | 'allow'> & { stored: WorkflowRow },
) => requireValidWorkflow(context, stored.project_id, next, stored)

export const workflowOperations: Operation[] = [
  // workflows_project serves the order.
  workflows.list({
    filters: { name: containsFilter('name') },
    bytes: sql.fragment`(
      octet_length(t.states::text) + octet_length(t.transitions::text) + coalesce(octet_length(t.payload_schema::text), 0))`,
    description:
      'A page contains less than 16 MiB of workflows; `limit` in the response is the number of items it was limited to.',
  }),
  workflows.create({
    description:
      'Problems of the definition are listed in meta.problems. Custom keys in states and transitions are stored and ignored. A state that calls a tool requires permission to call it.',
    alsoActions: [CALL_TOOL],
    body: WorkflowInput,
    validate: ({ services, project, body }) => validateDefinition(services, project, { payload_schema: null, ...body }),
    raises: [...refusals],
    prepare: ({ services, body, project }) => schemaProblems(services, project as string, body.payload_schema),
    check: ({ body, project, ...context }) => requireValidWorkflow(context, project, { payload_schema: null, ...body }),
  }),
  workflows.get(),
  workflows.update({
    description:
      'Replaces `states` and `transitions` entirely. A changed definition creates a version; tasks keep the version they were created with. Changed states and transitions require the same permissions as on creation.',
    alsoActions: [CALL_TOOL],
    body: WorkflowPatch,
    raises: [...refusals],
    prepare: ({ services, body, resource }) => schemaProblems(services, resource.project_id, body.payload_schema),
    async check(next, context) {
      if (workflowFields.some(name => context.body[name] !== undefined)) await checkDefinition(next, context)
    },
  }),
  workflows.adopt(),
  workflows.remove({
    description: 'Refused while the workflow has open tasks. Deletes its closed tasks and their history.',
    raises: ['WORKFLOW_HAS_OPEN_TASKS'],
  }),
  ...workflows.versions({
    alsoActions: [CALL_TOOL],
    raises: ['WORKFLOW_VALIDATION_FAILED'],
    prepare: ({ project_id, payload_schema }, services) => schemaProblems(services, project_id, payload_schema),
    check: checkDefinition,
  }),
]
