import type { Outgoing } from '../../core/db/write.ts'
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
