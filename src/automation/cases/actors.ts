import type { ActorRow } from '../../conversation/actors/model.ts'
import type { Tx } from '../../core/db/writer.ts'
import { caseKind } from './model.ts'
import { insertEntries, listCasesWithinLimit, moveCasesOfActor } from './store.ts'
import { AUTOMATION, entriesOf } from './timeline.ts'

/** Rows that are written at once, and cases that are told of at most. */
const BATCH = 1000

/**
 * Cases go with an actor that is merged to the one that stays, and let go of one that is deleted. However many they are, none
 * is held in memory but those that are told of: of more than a thousand, or of more than one answer may show, only the
 * timelines of the others say it.
 */
export async function moveActorCases(tx: Tx, from: ActorRow, to: ActorRow | null): Promise<void> {
  const ids = await moveCasesOfActor(tx, from.id, to?.id ?? null)
  if (ids.length === 0) return
  const changes = { actor_id: { from: from.id, to: to?.id ?? null } }
  for (let at = 0; at < ids.length; at += BATCH) {
    const moved = ids.slice(at, at + BATCH).map(id => ({ id, project_id: from.project_id }))
    await insertEntries(
      tx,
      moved.flatMap(row => entriesOf(row, AUTOMATION, [{ kind: 'updated', data: { changes } }])),
    )
  }
  for (const row of await listCasesWithinLimit(tx, ids.slice(0, BATCH)))
    tx.emit(caseKind, 'updated', row, { extra: { changed: Object.keys(changes) } })
}
