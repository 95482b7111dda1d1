import type { ActorRow } from '#conversation/actors/model.ts'
import type { Tx } from '#core/writes/writer.ts'
import { caseKind } from './model.ts'
import { insertEntries, listCasesWithinLimit, replaceCaseActor } from './store.ts'
import { AUTOMATION, timelineEntries } from './timeline.ts'

/** Timeline rows per statement, and the maximum number of cases with an `updated` event. */
const BATCH = 1000

/**
 * Moves the cases of an actor to the actor that it is merged into, or clears their actor if it is deleted. Events are
 * emitted for the first thousand cases that fit the page size limit; only the timelines record the change of the
 * others. Memory use is bounded by the ids and these cases.
 */
export async function moveActorCases(tx: Tx, from: ActorRow, to: ActorRow | null): Promise<void> {
  const ids = await replaceCaseActor(tx, from.id, to?.id ?? null)
  if (ids.length === 0) return
  const changes = { actor_id: { from: from.id, to: to?.id ?? null } }
  for (let at = 0; at < ids.length; at += BATCH) {
    const moved = ids.slice(at, at + BATCH).map(id => ({ id, project_id: from.project_id }))
    await insertEntries(
      tx,
      moved.flatMap(row => timelineEntries(row, AUTOMATION, [{ kind: 'updated', data: { changes } }])),
    )
  }
  for (const row of await listCasesWithinLimit(tx, ids.slice(0, BATCH)))
    tx.emit(caseKind, 'updated', row, { extra: { changed: Object.keys(changes) } })
}
