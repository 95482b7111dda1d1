import type { Values } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import type { Tx } from '#core/writes/writer.ts'
import { countCreatedActor } from './limits.ts'
import { type ActorRow, actorKind } from './model.ts'
import { findOrCreateActor } from './store.ts'

/**
 * Returns the end user with an external ID, which the front end of a caller names, and creates it if there is none. A created
 * one counts in ACTORS_CREATED_PER_HOUR of its key. The row is locked against its deletion.
 * @throws ACTOR_LIMIT_EXCEEDED
 */
export async function findOrCreateEndUser(
  tx: Tx,
  { caller, services }: Pick<Context, 'caller' | 'services'>,
  fields: Values<ActorRow> & { project_id: string },
): Promise<{ actor: ActorRow; isNew: boolean }> {
  const made = await findOrCreateActor(tx, fields)
  if ('existing' in made) return { actor: made.existing, isNew: false }
  if (caller.principal.type === 'api_key')
    await countCreatedActor(tx, caller.principal.id, services.config.ACTORS_CREATED_PER_HOUR)
  tx.emit(actorKind, 'created', made)
  return { actor: made, isNew: true }
}
