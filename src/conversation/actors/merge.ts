import { moveActorFiles } from '#content/files/actor-files.ts'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import { moveTurnsOfActor } from '#execution/generations/store.ts'
import { principalsChanged } from '#identity/principals/principal-cache.ts'
import { moveMemories } from '#memory/facts/ownership.ts'
import { type ActorRow, actorKind } from './model.ts'
import { requireNotPurging } from './purge.ts'
import { reassignActor } from './store.ts'

/** Called in a merge to move references to the other actor; may raise to refuse the merge. */
export const actorMergeHooks = extensionPoint<(tx: Tx, from: ActorRow, to: ActorRow) => Promise<void>>({
  name: 'actor merge hooks',
  folder: 'conversation/actors',
  description: 'Moves references from an actor to the actor that it is merged into, or refuses the merge',
})

/**
 * Moves everything of an actor to another one of the project, deletes it, and returns the record of the other one.
 * @throws ACTOR_NOT_FOUND, ACTOR_HAS_MESSAGES, SINGLE_SESSION_CONFLICT, VALIDATION_FAILED
 */
export async function mergeActor(tx: Tx, source: ActorRow, intoId: string, allow: Context['allow']): Promise<object> {
  if (intoId === source.id)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'into_actor_id', message: 'must be another actor' })
  const rows = new Map<string, ActorRow>()
  // Locked in id order, so that concurrent merges of a pair do not deadlock.
  for (const id of [source.id, intoId].sort()) {
    const row = isIdOf(actorKind, id) ? await actorKind.find(tx, id, true) : null
    if (row) rows.set(id, row)
  }
  const from = rows.get(source.id)
  if (!from) raise(actorKind.notFound, { meta: { id: source.id } })
  const to = rows.get(intoId)
  if (!to || to.project_id !== from.project_id) raise('ACTOR_NOT_FOUND', { meta: { id: intoId } })
  allow('actors:UpdateActor', { kind: actorKind, row: to })
  await requireNotPurging(tx, from.id, to.id)
  for (const move of actorMergeHooks.all()) await move(tx, from, to)
  await moveActorFiles(tx, from.id, to.id)
  await moveMemories(tx, from.id, to.id)
  await moveTurnsOfActor(tx, from.id, to.id)
  await reassignActor(tx, from.id, to.id)
  await actorKind.delete(tx, from.id)
  principalsChanged(tx, `actor:${from.id}`)
  tx.emit(actorKind, 'deleted', from)
  tx.emit(actorKind, 'updated', to)
  return actorKind.present(to)
}
