import { containsFilter } from '../../core/api/filters.ts'
import type { Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { madeBy, versionOperations } from '../../core/api/version-archive.ts'
import { versionNumber } from '../../core/api/versions.ts'
import { sql } from '../../core/db/sql.ts'
import { CALL_TOOL, requireValidWorkflow } from './check.ts'
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
    description: 'A page ends before 16 MiB of definitions: `limit` says how many it was cut to.',
  }),
  workflows.create({
    description:
      'The definition is refused with everything that is wrong with it in meta.problems. Keys of your own in states and transitions are kept and not read. A state that calls a tool needs the right to call it.',
    alsoActions: [CALL_TOOL],
    body: WorkflowInput,
    raises: [...refusals],
    async make({ tx, services, allow, body, project, caller }) {
      const { version_label, project_id: _project, payload_schema = null, ...given } = body
      const values = { ...given, payload_schema, project_id: project }
      await requireValidWorkflow({ tx, services, allow }, project, values)
      return versionedWorkflows.insert(tx, values, madeBy(caller, version_label))
    },
  }),
  workflows.get(),
  workflows.update({
    description:
      'Replaces `states` and `transitions` as a whole. Another definition makes a version; tasks keep the version that they were created with. Other states and transitions need the rights that the workflow needs to be created.',
    alsoActions: [CALL_TOOL],
    body: WorkflowPatch,
    quiet: true,
    raises: [...refusals],
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
      versionedWorkflows.change(tx, stored, workflowKind.changes(stored, next), madeBy(caller, body.version_label)),
  }),
  workflows.adopt({ adopt: (stored, { tx, caller }) => versionedWorkflows.adopt(tx, stored, caller) }),
  workflows.remove({
    description: 'Refused while a task of it is open; closed tasks go with it, with their history.',
    raises: ['WORKFLOW_HAS_OPEN_TASKS'],
    async check(row, { tx }) {
      for (const end of workflowEnds.all()) await end(tx, row)
    },
  }),
  ...versionOperations(workflowKind, { path, tag, record: WorkflowVersion, archive: workflowVersions }),
  workflows.action('restore', {
    id: 'restoreWorkflowVersion',
    path: `${path}/{workflow_id}/versions/{version}/restore`,
    summary: 'Write the definition of an earlier version as the next one',
    description: 'It must still be one that the caller could write today. Name and description stay.',
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
