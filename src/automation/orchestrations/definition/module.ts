import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { orchestrationCloning } from './clone.ts'
import { orchestrationErrors } from './errors.ts'
import { orchestrationKind } from './model.ts'
import { orchestrationOperations } from './operations.ts'
import { orchestrationType } from './resource-type.ts'

export default module('orchestrations', {
  tags: { Orchestrations: 'Orchestrations, their versions and their runs.' },
  errors: orchestrationErrors,
  kinds: [orchestrationKind],
  resourceTypes: [orchestrationType],
  operations: orchestrationOperations,
  extensions: [cloneables.with(orchestrationCloning)],
})
