import { triggerTargets } from '../../automation/triggers/targets.ts'
import { endUserContent, turnContent } from '../../control/retention/content.ts'
import { footprints } from '../../control/storage/footprint.ts'
import { actorMoves } from '../../conversation/actors/merge.ts'
import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { promotionGates } from '../../execution/agents/release.ts'
import { turnOwners } from '../../execution/generations/source.ts'
import { resumes } from '../../identity/projects/pause.ts'
import { copiedResults, resultContent } from './erase.ts'
import { evalErrors } from './errors.ts'
import { evalGates } from './gate.ts'
import { evalHandlers, evalSchedules, resumeItems } from './handlers.ts'
import { evalRunWork } from './long-work.ts'
import { evalResultKind, evalRunKind, sealedRuns } from './model.ts'
import { evalRunOperations } from './operations.ts'
import { moveResults, resultFootprint } from './store.ts'
import { evalTarget } from './trigger.ts'
import { itemTurns } from './turns.ts'

export default module('eval-runs', {
  errors: evalErrors,
  kinds: [evalRunKind, evalResultKind],
  operations: evalRunOperations,
  handlers: evalHandlers,
  schedules: evalSchedules,
  sealedColumns: sealedRuns,
  extensions: [
    longWork.with(evalRunWork),
    turnOwners.with(itemTurns),
    turnContent.with(resultContent),
    endUserContent.with(copiedResults),
    actorMoves.with((tx, from, to) => moveResults(tx, from.id, to.id).then(() => {})),
    resumes.with(resumeItems),
    promotionGates.with(evalGates),
    triggerTargets.with(evalTarget),
    footprints.with(resultFootprint),
  ],
})
