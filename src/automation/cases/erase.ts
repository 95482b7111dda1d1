import type { TurnContentEraser } from '../../control/retention/erasure.ts'
import { eraseEvidenceOf } from './store.ts'

/** What a turn said goes from the evidence of it with the turn; its hash stays. Evidence is in no event. */
export const evidenceContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = await eraseEvidenceOf(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { case_evidence: ids.length }, events: [] }
  },
}
