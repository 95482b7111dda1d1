import { turnContent } from '../../control/retention/erasure.ts'
import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { cloneables } from '../../identity/projects/clone.ts'
import { turnOwners } from '../generations/loop/turn-owner.ts'
import { deciderCloning } from './clone.ts'
import { decisionContent } from './erase.ts'
import { deciderErrors } from './errors.ts'
import { decisionHandlers, decisionSchedules } from './handlers.ts'
import { decisionWork } from './long-work.ts'
import { deciderKind, decisionKind, sealedInputs } from './model.ts'
import { allDeciderOperations } from './operations.ts'
import { decisionTurnOwner } from './settle.ts'
import { decisionAttempts } from './store.ts'

export default module('deciders', {
  tags: { Deciders: 'Versioned sets of questions, and decisions that answer them.' },
  errors: deciderErrors,
  kinds: [deciderKind, decisionKind],
  resourceTypes: [resourceType(deciderKind)],
  operations: allDeciderOperations,
  handlers: decisionHandlers,
  schedules: decisionSchedules,
  sealedColumns: sealedInputs,
  extensions: [
    longWork.with(decisionWork),
    leaseHolding.with(decisionAttempts.endLeases),
    cloneables.with(deciderCloning),
    turnOwners.with(decisionTurnOwner),
    turnContent.with(decisionContent),
  ],
})
