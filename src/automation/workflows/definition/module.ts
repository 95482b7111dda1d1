import { definitionCloning } from '#automation/orchestrations/definition/clone.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { workflowErrors } from './errors.ts'
import { workflowKind, workflowVersions } from './model.ts'
import { workflowOperations } from './operations.ts'
import { workflowType } from './resource-type.ts'

export default module('workflows', {
  tags: { Workflows: 'State machines that tasks move through.' },
  errors: workflowErrors,
  kinds: [workflowKind],
  resourceTypes: [workflowType],
  operations: workflowOperations,
  extensions: [cloneables.with(definitionCloning(workflowVersions, { naming: 'states' }))],
})
