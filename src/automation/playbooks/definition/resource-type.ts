import { resourceType } from '#core/api/resource-type.ts'
import { playbookKind } from './model.ts'
import { playbookIn } from './operations.ts'
import { validatePlaybook } from './validate.ts'

export const playbookType = resourceType(playbookKind, {
  check: properties => (properties.steps ? validatePlaybook(playbookIn(properties)) : []),
})
