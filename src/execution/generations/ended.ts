import type { Outgoing } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'
import { TURN_CHANNEL } from './live.ts'
import { type GenerationRow, generationKind } from './model.ts'

/** What follows from the pause of a turn: its event, and the notice for those who wait. */
export function followPause(outgoing: Outgoing, after: GenerationRow): void {
  outgoing.emit(generationKind, 'requires_action', after)
  outgoing.notify(TURN_CHANNEL, `${after.id} settled`)
}

/** What follows from the end of a turn: its event, and the notice for those who wait. */
export function followEnd(outgoing: Outgoing, after: GenerationRow): void {
  outgoing.emit(generationKind, after.status === 'completed' ? 'completed' : 'failed', after)
  outgoing.notify(TURN_CHANNEL, `${after.id} settled`)
}

/**
 * What a module has follow from turns that complete. Asked for before the transaction that ends the turn, in which the
 * result is called; null, and no round trip, where nothing follows.
 */
export type TurnFollower = (
  services: Services,
  generation: GenerationRow,
) => Promise<((outgoing: Outgoing) => void) | null>

export const turnFollowers = extensionPoint<TurnFollower>('what follows from turns')

/** What follows from the end of a turn, with what other modules have follow from it. */
export async function followersOf(services: Services, generation: GenerationRow): Promise<typeof followEnd> {
  if (generation.status !== 'completed') return followEnd
  const further = await Promise.all(turnFollowers.all().map(follower => follower(services, generation)))
  return (outgoing, after) => {
    followEnd(outgoing, after)
    for (const follow of further) follow?.(outgoing)
  }
}
