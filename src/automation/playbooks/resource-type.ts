import { resourceType } from '../../core/api/resource-type.ts'
import { playbookKind } from './model.ts'
import { definitionIn } from './operations.ts'
import { validatePlaybook } from './validate.ts'

export const playbookType = resourceType(playbookKind, {
  check: properties => (properties.steps ? validatePlaybook(definitionIn(properties)) : []),
})
