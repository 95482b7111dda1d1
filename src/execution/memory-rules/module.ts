import { turnContent } from '../../control/retention/content.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { turnFollowers } from '../generations/ended.ts'
import { turnOwners } from '../generations/source.ts'
import { firingContent } from './erase.ts'
import { ruleFollower } from './follow.ts'
import { firingHandlers, firingRetention, firingSchedules } from './handlers.ts'
import { memoryRuleKind } from './model.ts'
import { memoryRuleOperations } from './operations.ts'
import { handlingTurns } from './settle.ts'
import { firingAttempts } from './store.ts'

export default module('memory-rules', {
  kinds: [memoryRuleKind],
  resourceTypes: [resourceType(memoryRuleKind, { defaults: { enabled: true } })],
  operations: memoryRuleOperations,
  handlers: firingHandlers,
  schedules: firingSchedules,
  sweeps: [firingRetention],
  extensions: [
    leaseHolding.with(firingAttempts.endLeases),
    turnFollowers.with(ruleFollower),
    turnOwners.with(handlingTurns),
    turnContent.with(firingContent),
  ],
})
