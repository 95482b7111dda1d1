import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { eraseFiringTurns } from './store.ts'

/** Erases the input and output of a turn from its firing. No event contains firings. */
export const triggerFiringContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = await eraseFiringTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { trigger_firings: ids.length }, events: [] }
  },
}
