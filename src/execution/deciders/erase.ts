import { withoutFields } from '../../control/events/redact.ts'
import type { TurnContent } from '../../control/retention/content.ts'
import { decisionKind } from './model.ts'
import { eraseOfTurns } from './store.ts'

/** What a turn decided goes with it. */
export const decisionContent: TurnContent = {
  async erase(tx, turns) {
    const ids = await eraseOfTurns(
      tx,
      turns.map(({ id }) => id),
    )
    const without = withoutFields('answers', 'answers_by_name', 'questions', 'error', 'metadata')
    return { counts: { decisions: ids.length }, events: [{ resource_type: decisionKind.name, ids, without }] }
  },
}
