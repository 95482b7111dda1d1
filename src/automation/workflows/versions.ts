import { versioned } from '../../core/api/versioned.ts'
import { requireValid } from './check.ts'
import { type Definition, definitionFields, isSameStructure } from './definition.ts'
import { type WorkflowRow, workflowKind, workflowVersions } from './model.ts'

/** Workflows as they are written: another definition is the next version. */
export const versionedWorkflows = versioned<WorkflowRow, Definition>({
  kind: workflowKind,
  archive: workflowVersions,
  fields: definitionFields,
  same: isSameStructure,
  check: requireValid,
})
