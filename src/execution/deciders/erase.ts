import { redactEvents, redactFields } from '#control/events/redact.ts'
import type { Counts, TurnContentEraser } from '#control/retention/erasure.ts'
import type { Tx } from '#core/writes/writer.ts'
import { decisionKind } from './model.ts'
import { eraseDecisionTurns, eraseSettledDecisions } from './store.ts'

const without = redactFields('answers', 'answers_by_name', 'questions', 'error', 'metadata')

/** Erases the decisions of turns. */
export const decisionContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = await eraseDecisionTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { decisions: ids.length }, events: [{ resource_type: decisionKind.name, ids, without }] }
  },
}

/** Erases settled decisions by id, including those without a turn. */
export async function eraseDecisions(tx: Tx, ids: readonly string[]): Promise<Counts> {
  const erased = await eraseSettledDecisions(tx, ids)
  const events = await redactEvents(tx, [{ resource_type: decisionKind.name, ids: erased, without }])
  return { decisions: erased.length, events }
}
