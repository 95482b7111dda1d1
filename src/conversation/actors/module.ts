import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { actorErrors } from './errors.ts'
import { actorKind } from './model.ts'
import { actorOperations } from './operations.ts'
import { purgeWork } from './purge.ts'

export default module('actors', {
  tags: { Actors: 'End users and personas of conversations.' },
  errors: actorErrors,
  kinds: [actorKind],
  resourceTypes: [resourceType(actorKind)],
  operations: actorOperations,
  work: [purgeWork],
})
