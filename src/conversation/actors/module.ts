import { module } from '../../core/api/module.ts'
import { actorErrors } from './errors.ts'
import { actorKind } from './model.ts'
import { actorOperations } from './operations.ts'
import { purgeHandlers, purgeSchedules } from './purge.ts'

export default module('actors', {
  errors: actorErrors,
  kinds: [actorKind],
  operations: actorOperations,
  handlers: purgeHandlers,
  schedules: purgeSchedules,
})
