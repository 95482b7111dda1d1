import { endUserContent, turnContent } from '#control/retention/erasure.ts'
import { turnRatings } from '#control/usage/report-store.ts'
import { onDelete } from '#core/api/dependents.ts'
import { module } from '#core/modules/module.ts'
import { actorMergeHooks } from '../actors/merge.ts'
import { actorKind } from '../actors/model.ts'
import { endUserFeedback, eraseActorFeedback, turnFeedback } from './erase.ts'
import { feedbackKind } from './model.ts'
import { feedbackOperations } from './operations.ts'
import { ratingsOfTurns, reassignFeedback } from './store.ts'

export default module('feedback', {
  tags: { Feedback: 'Ratings of replies by end users, users and keys.' },
  kinds: [feedbackKind],
  operations: feedbackOperations,
  extensions: [
    turnRatings.with(ratingsOfTurns),
    turnContent.with(turnFeedback),
    endUserContent.with(endUserFeedback),
    actorMergeHooks.with((tx, from, to) => reassignFeedback(tx, from.id, to.id)),
    onDelete(actorKind, eraseActorFeedback),
  ],
})
