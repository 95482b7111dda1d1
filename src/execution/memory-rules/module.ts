import { turnContent } from '#control/retention/erasure.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { turnCompletionHooks } from '../generations/loop/turn-hooks.ts'
import { turnOwners } from '../generations/loop/turn-owner.ts'
import { ruleFiringContent } from './erase.ts'
import { handlerTurnOwner, ruleFiringWork } from './fire.ts'
import { memoryRuleKind } from './model.ts'
import { memoryRuleOperations } from './operations.ts'
import { firingRetention } from './retention.ts'
import { ruleTurnHook } from './rule-hook.ts'

export default module('memory-rules', {
  kinds: [memoryRuleKind],
  resourceTypes: [resourceType(memoryRuleKind, { defaults: { enabled: true } })],
  operations: memoryRuleOperations,
  work: [ruleFiringWork],
  sweeps: [firingRetention],
  extensions: [
    turnCompletionHooks.with(ruleTurnHook),
    turnOwners.with(handlerTurnOwner),
    turnContent.with(ruleFiringContent),
  ],
})
