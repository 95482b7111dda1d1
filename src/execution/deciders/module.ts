import { turnContent } from '#control/retention/erasure.ts'
import { longWork } from '#core/api/long-work.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { turnOwners } from '../generations/loop/turn-owner.ts'
import { deciderCloning } from './clone.ts'
import { decisionContent } from './erase.ts'
import { deciderErrors } from './errors.ts'
import { decisionWork } from './evaluate.ts'
import { decisionLongWork } from './long-work.ts'
import { deciderKind, decisionKind, sealedInputs } from './model.ts'
import { allDeciderOperations } from './operations.ts'
import { decisionTurnOwner } from './settle.ts'

export default module('deciders', {
  tags: { Deciders: 'Versioned sets of questions, and decisions that answer them.' },
  errors: deciderErrors,
  kinds: [deciderKind, decisionKind],
  resourceTypes: [resourceType(deciderKind)],
  operations: allDeciderOperations,
  work: [decisionWork],
  sealedColumns: sealedInputs,
  extensions: [
    longWork.with(decisionLongWork),
    cloneables.with(deciderCloning),
    turnOwners.with(decisionTurnOwner),
    turnContent.with(decisionContent),
  ],
})
