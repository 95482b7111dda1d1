import { turnContent } from '../../control/retention/erasure.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { turnCompletionHooks } from '../generations/loop/turn-hooks.ts'
import { turnOwners } from '../generations/loop/turn-owner.ts'
import { ruleFiringContent } from './erase.ts'
import { firingHandlers, firingRetention, firingSchedules } from './handlers.ts'
import { memoryRuleKind } from './model.ts'
import { memoryRuleOperations } from './operations.ts'
import { ruleTurnHook } from './rule-hook.ts'
import { handlerTurnOwner } from './settle.ts'
import { ruleFiringWork } from './store.ts'

export default module('memory-rules', {
  kinds: [memoryRuleKind],
  resourceTypes: [resourceType(memoryRuleKind, { defaults: { enabled: true } })],
  operations: memoryRuleOperations,
  handlers: firingHandlers,
  schedules: firingSchedules,
  sweeps: [firingRetention],
  extensions: [
    leaseHolding.with(ruleFiringWork.endLeases),
    turnCompletionHooks.with(ruleTurnHook),
    turnOwners.with(handlerTurnOwner),
    turnContent.with(ruleFiringContent),
  ],
})
