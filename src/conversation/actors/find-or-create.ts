import type { Values } from '../../core/api/kind.ts'
import type { ExistingRow } from '../../core/api/resource.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type ActorRow, actorKind } from './model.ts'
import { findByExternalId } from './store.ts'

/**
 * Adds an actor, or finds the one of the project with the external id and leaves it as it is. Either way it stays until
 * the transaction ends. Emits nothing.
 */
export async function findOrCreateActor(
  tx: Tx,
  fields: Values<ActorRow> & { project_id: string },
): Promise<ActorRow | ExistingRow<ActorRow>> {
  const { project_id, external_id } = fields
  // A second round only when the actor that was in the way is deleted before it can be read.
  for (let round = 0; round < 5; round++) {
    const made = await actorKind.insertUnlessTaken(tx, fields)
    if (made) return made
    const existing = await findByExternalId(tx, project_id, external_id as string)
    if (existing) return { existing }
  }
  throw new Error(`external id neither free nor taken in project ${project_id}`)
}
