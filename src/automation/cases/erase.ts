import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { eraseTurnEvidence } from './store.ts'

/** Erases the output of a turn from evidence. The hash remains. No event contains evidence. */
export const evidenceContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = await eraseTurnEvidence(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { case_evidence: ids.length }, events: [] }
  },
}
