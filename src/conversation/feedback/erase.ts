import { type Redaction, redactEvents, redactFields } from '#control/events/redact.ts'
import {
  type Counts,
  contentUnavailable,
  type EndUserContentEraser,
  eraseInBatches,
  type TurnContentEraser,
} from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ActorRow } from '../actors/model.ts'
import { feedbackKind } from './model.ts'
import { eraseTexts, isOfEndUser, listFeedbackOfEndUser } from './store.ts'

/** Feedback keeps its numbers when its comment and labels are erased. */

/** Returns the redaction of events of feedback. */
export const feedbackEvents = (ids: readonly string[]): Redaction[] => [
  { resource_type: feedbackKind.name, ids, without: redactFields('labels') },
]

/** Erases comments and labels on turns with the turns. Index feedback_generation. */
export const turnFeedback: TurnContentEraser = {
  async erase(tx, turns) {
    const generations = sql.array(
      turns.map(({ id }) => id),
      'text',
    )
    const ids = await eraseTexts(tx, sql.fragment`t.generation_id = any(${generations})`)
    const counts: Counts = ids.length === 0 ? {} : { feedback: ids.length }
    return { counts, events: feedbackEvents(ids) }
  },
}

/** Erases comments and labels of an end user and on its turns. */
export const endUserFeedback: EndUserContentEraser = {
  async erase({ services, endUser, until, read, write }) {
    await eraseInBatches(
      limit => listFeedbackOfEndUser(read, endUser, until, limit),
      found =>
        write(async tx => {
          const ids = await eraseTexts(tx, sql.fragment`t.id = any(${sql.array([...found], 'text')})`)
          return {
            feedback: ids.length,
            events: await redactEvents(tx, feedbackEvents(ids)),
            kept_answers: await eraseStoredResponses(tx, services, endUser.project_id, ids, contentUnavailable()),
          }
        }),
    )
    return 'erased'
  },
}

/** Erases comments and labels of an actor that is deleted. */
export async function eraseActorFeedback(tx: Tx, actor: ActorRow): Promise<void> {
  const ids = await eraseTexts(tx, isOfEndUser(actor))
  await redactEvents(tx, feedbackEvents(ids))
}
