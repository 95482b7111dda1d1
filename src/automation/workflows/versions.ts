import { versionedResource } from '../../core/api/versioned-resource.ts'
import { requireValidWorkflow } from './check.ts'
import { isSameWorkflow, type WorkflowDefinition, workflowFields } from './definition.ts'
import { type WorkflowRow, workflowKind, workflowVersions } from './model.ts'

/** Workflows as a versioned resource: a changed definition creates a version. */
export const versionedWorkflows = versionedResource<WorkflowRow, WorkflowDefinition>({
  kind: workflowKind,
  archive: workflowVersions,
  fields: workflowFields,
  same: isSameWorkflow,
  check: requireValidWorkflow,
})
