import { turnContent } from '#control/retention/erasure.ts'
import { footprints } from '#control/storage/footprint.ts'
import { actorMergeHooks } from '#conversation/actors/merge.ts'
import { actorKind } from '#conversation/actors/model.ts'
import { onDelete } from '#core/api/dependents.ts'
import { module } from '#core/modules/module.ts'
import { moveActorCases } from './actors.ts'
import { evidenceContent } from './erase.ts'
import { caseErrors } from './errors.ts'
import { caseKind, evidenceKind, linkKind, timelineKind } from './model.ts'
import { caseOperations } from './operations.ts'
import { caseFootprint } from './store.ts'

export default module('cases', {
  tags: { Cases: 'Records of one subject with a timeline, evidence and links.' },
  errors: caseErrors,
  kinds: [caseKind, timelineKind, evidenceKind, linkKind],
  operations: caseOperations,
  extensions: [
    footprints.with(caseFootprint),
    turnContent.with(evidenceContent),
    actorMergeHooks.with(moveActorCases),
    onDelete(actorKind, (tx, actor) => moveActorCases(tx, actor, null)),
  ],
})
