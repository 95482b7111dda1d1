import { definitionCloning } from '../orchestrations/clone.ts'
import { workflowFields } from './definition.ts'
import { workflowKind } from './model.ts'
import { versionedWorkflows } from './versions.ts'

export const workflowCloning = definitionCloning({
  name: 'workflows',
  kind: workflowKind,
  fields: workflowFields,
  naming: 'states',
  insert: versionedWorkflows.insert,
})
