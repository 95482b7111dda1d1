import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { settleFiringsOfTurns } from './store.ts'

/** Settles the firings of erased turns, so that a worker that processes one stores nothing more. */
export const ruleFiringContent: TurnContentEraser = {
  async erase(tx, turns) {
    await settleFiringsOfTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: {}, events: [] }
  },
}
