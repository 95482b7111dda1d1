import type { Queryable } from '../../core/db/sql.ts'
import type { Outgoing } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'
import { memoryEntryKind } from '../../memory/entries/model.ts'
import { TURN_CHANNEL } from './live.ts'
import { type GenerationRow, generationKind, type StepRow } from './model.ts'
import { WRITE_MEMORY } from './open-step.ts'
import { entriesOfGeneration } from './store.ts'

/** What a turn has brought into memory stores, as its events show it beside its record; null where its content is erased. */
export type Remembered = readonly object[] | null

export const remembered = async (db: Queryable, generationId: string): Promise<Remembered> =>
  (await entriesOfGeneration(db, generationId)).map(memoryEntryKind.present)

/** The same, read where a step has stated a fact: a turn without one costs no statement. */
export async function rememberedBy(
  db: Queryable,
  { id }: Pick<GenerationRow, 'id'>,
  steps: readonly Pick<StepRow, 'tool_calls'>[],
): Promise<Remembered> {
  const stated = steps.some(({ tool_calls }) => tool_calls.some(({ tool_name }) => tool_name === WRITE_MEMORY))
  return stated ? remembered(db, id) : []
}

export const withMemory = (memory_entries: Remembered) => ({ extra: { memory_entries } })

/** What follows from the pause of a turn: its event, and the notice for those who wait. */
export function followPause(outgoing: Outgoing, after: GenerationRow, memory: Remembered = []): void {
  outgoing.emit(generationKind, 'requires_action', after, withMemory(memory))
  outgoing.notify(TURN_CHANNEL, `${after.id} settled`)
}

/** What follows from the end of a turn: its event, and the notice for those who wait. */
export function followEnd(outgoing: Outgoing, after: GenerationRow, memory: Remembered): void {
  outgoing.emit(generationKind, after.status === 'completed' ? 'completed' : 'failed', after, withMemory(memory))
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
  return (outgoing, after, memory) => {
    followEnd(outgoing, after, memory)
    for (const follow of further) follow?.(outgoing)
  }
}
