import { triggerTargets } from '#automation/triggers/targets.ts'
import { endUserContent, turnContent } from '#control/retention/erasure.ts'
import { footprints } from '#control/storage/footprint.ts'
import { actorMergeHooks } from '#conversation/actors/merge.ts'
import { longWork } from '#core/api/long-work.ts'
import { module } from '#core/modules/module.ts'
import { promotionGates } from '#execution/agents/release.ts'
import { turnOwners } from '#execution/generations/loop/turn-owner.ts'
import { copiedResults, resultContent } from './erase.ts'
import { evalErrors } from './errors.ts'
import { evalGates } from './gate.ts'
import { evalRunWork } from './long-work.ts'
import { evalResultKind, evalRunKind, sealedEvalRuns } from './model.ts'
import { evalRunOperations } from './operations.ts'
import { evalItemWork } from './process-item.ts'
import { evalRunHandler } from './settle-run.ts'
import { reassignResults, resultFootprint } from './store.ts'
import { evalTarget } from './trigger.ts'
import { itemTurnOwner } from './turns.ts'

export default module('eval-runs', {
  errors: evalErrors,
  kinds: [evalRunKind, evalResultKind],
  operations: evalRunOperations,
  handlers: [evalRunHandler],
  work: [evalItemWork],
  sealedColumns: sealedEvalRuns,
  extensions: [
    longWork.with(evalRunWork),
    turnOwners.with(itemTurnOwner),
    turnContent.with(resultContent),
    endUserContent.with(copiedResults),
    actorMergeHooks.with((tx, from, to) => reassignResults(tx, from.id, to.id).then(() => {})),
    promotionGates.with(evalGates),
    triggerTargets.with(evalTarget),
    footprints.with(resultFootprint),
  ],
})
