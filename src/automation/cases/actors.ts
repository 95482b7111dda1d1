import type { ActorRow } from '../../conversation/actors/model.ts'
import type { Tx } from '../../core/db/write.ts'
import { changeCase } from './change.ts'
import { casesOfActor } from './store.ts'
import { AUTOMATION } from './timeline.ts'

/** Cases go with an actor that is merged to the one that stays, and let go of one that is deleted. */
export async function moveActorCases(tx: Tx, from: ActorRow, to: ActorRow | null): Promise<void> {
  for (const row of await casesOfActor(tx, from.id)) await changeCase(tx, row, { actor_id: to?.id ?? null }, AUTOMATION)
}
