import type { TurnContentEraser } from '../../control/retention/erasure.ts'
import { endFirings } from './store.ts'

/** What rules read of turns: of one that is erased nothing more is kept, by whoever is at it. */
export const ruleFiringContent: TurnContentEraser = {
  async erase(tx, turns) {
    await endFirings(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: {}, events: [] }
  },
}
