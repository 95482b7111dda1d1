import type { TurnContent } from '../../control/retention/content.ts'
import { eraseOfTurns } from './store.ts'

/** What a turn was given by a firing, and said to it, goes with the turn. Firings are in no event. */
export const firingContent: TurnContent = {
  async erase(tx, turns) {
    const ids = await eraseOfTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { trigger_firings: ids.length }, events: [] }
  },
}
