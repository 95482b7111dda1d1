import { containsFilter } from '../../core/api/filters.ts'
import type { Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { versionAuthor, versionOperations } from '../../core/api/version-archive.ts'
import { versionNumber } from '../../core/api/versions.ts'
import { sql } from '../../core/db/sql.ts'
import { CALL_TOOL, requireValidWorkflow, schemaProblems } from './check.ts'
import { workflowFields } from './definition.ts'
import { workflowEnds } from './delete-hooks.ts'
import {
  RestoreWorkflowInput,
  Workflow,
  WorkflowInput,
  WorkflowPatch,
  WorkflowVersion,
  workflowKind,
  workflowVersions,
} from './model.ts'
import { versionedWorkflows } from './versions.ts'

const tag = 'Workflows'
const path = '/workflows'
const workflows = resource(workflowKind, { path, tag })

const refusals = ['WORKFLOW_VALIDATION_FAILED', 'NAME_CONFLICT'] as const

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
    raises: [...refusals],
    prepare: ({ services, body, project }) => schemaProblems(services, project as string, body.payload_schema),
    async make({ tx, services, allow, body, project, caller }) {
      const { version_label, project_id: _project, payload_schema = null, ...fields } = body
      const values = { ...fields, payload_schema, project_id: project }
      await requireValidWorkflow({ tx, services, allow }, project, values)
      return versionedWorkflows.insert(tx, values, versionAuthor(caller, version_label))
    },
  }),
  workflows.get(),
  workflows.update({
    description:
      'Replaces `states` and `transitions` entirely. A changed definition creates a version; tasks keep the version they were created with. Changed states and transitions require the same permissions as on creation.',
    alsoActions: [CALL_TOOL],
    body: WorkflowPatch,
    quiet: true,
    raises: [...refusals],
    prepare: ({ services, body, resource }) => schemaProblems(services, resource.project_id, body.payload_schema),
    async check(next, { body, stored, tx, services, allow }) {
      if (workflowFields.some(name => body[name] !== undefined))
        await requireValidWorkflow(
          { tx, services, allow },
          stored.project_id,
          versionedWorkflows.configOf(next),
          stored,
        )
    },
    write: (next, { tx, stored, body, caller }) =>
      versionedWorkflows.change(
        tx,
        stored,
        workflowKind.changes(stored, next),
        versionAuthor(caller, body.version_label),
      ),
  }),
  workflows.adopt({ adopt: (stored, { tx, caller }) => versionedWorkflows.adopt(tx, stored, caller) }),
  workflows.remove({
    description: 'Refused while the workflow has open tasks. Deletes its closed tasks and their history.',
    raises: ['WORKFLOW_HAS_OPEN_TASKS'],
    async check(row, { tx }) {
      for (const onDelete of workflowEnds.all()) await onDelete(tx, row)
    },
  }),
  ...versionOperations(workflowKind, { path, tag, record: WorkflowVersion, archive: workflowVersions }),
  workflows.action('restore', {
    id: 'restoreWorkflowVersion',
    path: `${path}/{workflow_id}/versions/{version}/restore`,
    summary: 'Restore a workflow version',
    description:
      'Creates a new version with the definition of an earlier one. The restored version is validated and authorized like a new write. Name and description are unchanged.',
    alsoActions: [CALL_TOOL],
    action: 'workflows:RestoreWorkflowVersion',
    body: RestoreWorkflowInput,
    bodyOptional: true,
    answers: { 200: Workflow },
    raises: ['WORKFLOW_VALIDATION_FAILED'],
    run: async context =>
      workflowKind.present(
        await versionedWorkflows.restore(context, versionNumber(context.params.version), context.body?.label),
      ),
  }),
]
