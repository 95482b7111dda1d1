import type { TurnContent } from '../../control/retention/content.ts'
import { eraseOutputs } from './store.ts'

/** What a turn answered to an item goes with the content of the turn; scores and verdict stay. */
export const resultContent: TurnContent = {
  async erase(tx, turns) {
    const count = await eraseOutputs(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { eval_results: count }, events: [] }
  },
}
