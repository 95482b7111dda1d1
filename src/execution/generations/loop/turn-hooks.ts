import type { Queryable } from '../../../core/db/sql.ts'
import type { Outbox } from '../../../core/db/writer.ts'
import { extensionPoint } from '../../../core/declarations.ts'
import type { Services } from '../../../core/process/services.ts'
import { memoryEntryKind } from '../../../memory/entries/model.ts'
import { WRITE_MEMORY } from '../journal/open-step.ts'
import { type GenerationRow, generationKind, type JournalStepRow } from '../model.ts'
import { entriesOfGeneration } from '../store.ts'
import { TURN_CHANNEL } from '../streams/live-turns.ts'

/** What a turn has brought into memory stores, as its events show it beside its record; null where its content is erased. */
export type RememberedTurn = readonly object[] | null

export const rememberTurnCte = async (db: Queryable, generationId: string): Promise<RememberedTurn> =>
  (await entriesOfGeneration(db, generationId)).map(memoryEntryKind.present)

/** The same, read where a step has stated a fact: a turn without one costs no statement. */
export async function rememberedBy(
  db: Queryable,
  { id }: Pick<GenerationRow, 'id'>,
  steps: readonly Pick<JournalStepRow, 'tool_calls'>[],
): Promise<RememberedTurn> {
  const stated = steps.some(({ tool_calls }) => tool_calls.some(({ tool_name }) => tool_name === WRITE_MEMORY))
  return stated ? rememberTurnCte(db, id) : []
}

export const withMemory = (memory_entries: RememberedTurn) => ({ extra: { memory_entries } })

/** What follows from the pause of a turn: its event, and the notice for those who wait. */
export function emitPaused(outgoing: Outbox, after: GenerationRow, memory: RememberedTurn = []): void {
  outgoing.emit(generationKind, 'requires_action', after, withMemory(memory))
  outgoing.notify(TURN_CHANNEL, `${after.id} settled`)
}

/** What follows from the end of a turn: its event, and the notice for those who wait. */
export function emitSettled(outgoing: Outbox, after: GenerationRow, memory: RememberedTurn): void {
  outgoing.emit(generationKind, after.status === 'completed' ? 'completed' : 'failed', after, withMemory(memory))
  outgoing.notify(TURN_CHANNEL, `${after.id} settled`)
}

/**
 * What a module has follow from turns that complete. Asked for before the transaction that ends the turn, in which the
 * result is called; null, and no round trip, where nothing follows.
 */
export type TurnCompletionHook = (
  services: Services,
  generation: GenerationRow,
) => Promise<((outgoing: Outbox) => void) | null>

export const turnCompletionHooks = extensionPoint<TurnCompletionHook>('what follows from turns')

/** What follows from the end of a turn, with what other modules have follow from it. */
export async function completionHooksFor(services: Services, generation: GenerationRow): Promise<typeof emitSettled> {
  if (generation.status !== 'completed') return emitSettled
  const further = await Promise.all(turnCompletionHooks.all().map(follower => follower(services, generation)))
  return (outgoing, after, memory) => {
    emitSettled(outgoing, after, memory)
    for (const follow of further) follow?.(outgoing)
  }
}
