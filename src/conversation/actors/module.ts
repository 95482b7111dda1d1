import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { actorErrors } from './errors.ts'
import { actorKind } from './model.ts'
import { actorOperations } from './operations.ts'
import { purgeHandlers, purgeSchedules } from './purge.ts'
import { actorPurges } from './purge-store.ts'

export default module('actors', {
  tags: { Actors: 'End users and personas of conversations.' },
  errors: actorErrors,
  kinds: [actorKind],
  resourceTypes: [resourceType(actorKind)],
  operations: actorOperations,
  handlers: purgeHandlers,
  schedules: purgeSchedules,
  extensions: [leaseHolding.with(actorPurges.endLeases)],
})
