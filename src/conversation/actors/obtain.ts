import { newId } from '../../core/api/ids.ts'
import type { Tx } from '../../core/db/write.ts'
import { type ActorRow, actorKind } from './model.ts'
import { findActorByExternalId, insertActor, type NewActor } from './store.ts'

/**
 * Makes an actor, or finds the one of the project with the external id and leaves it as it is (conversation, 6.3.3).
 * Either way it stays until the transaction ends.
 */
export async function obtainActor(tx: Tx, fields: Omit<NewActor, 'id'>): Promise<{ actor: ActorRow; made: boolean }> {
  const { project_id, external_id } = fields
  // A second round only when the actor that was in the way is deleted before it can be read.
  for (let round = 0; round < 5; round++) {
    const made = await insertActor(tx, { id: newId(actorKind.prefix), ...fields })
    if (made) {
      tx.emit(actorKind, 'created', made)
      return { actor: made, made: true }
    }
    const found = await findActorByExternalId(tx, project_id, external_id as string)
    if (found) return { actor: found, made: false }
  }
  throw new Error(`external id neither free nor taken in project ${project_id}`)
}
