import { module } from '../../core/api/module.ts'
import { actorKind } from './model.ts'
import { actorOperations } from './operations.ts'

export default module('actors', {
  kinds: [actorKind],
  operations: actorOperations,
})
