import type { TurnContentEraser } from '../../control/retention/erasure.ts'
import { eraseFiringTurns } from './store.ts'

/** What a turn was given by a firing, and said to it, goes with the turn. Firings are in no event. */
export const triggerFiringContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = await eraseFiringTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { trigger_firings: ids.length }, events: [] }
  },
}
