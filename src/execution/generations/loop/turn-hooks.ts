import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { memoryEntryKind } from '#memory/entries/model.ts'
import { WRITE_MEMORY } from '../journal/step.ts'
import { type GenerationRow, generationKind, type JournalStepRow } from '../model.ts'
import { listMemoryEntriesOfTurn } from '../store.ts'

/** Memory entries written by a turn, as its events contain them; null if its content is erased. */
export type TurnMemory = readonly object[] | null

export const loadTurnMemory = async (db: Queryable, generationId: string): Promise<TurnMemory> =>
  (await listMemoryEntriesOfTurn(db, generationId)).map(memoryEntryKind.present)

/** Returns the memory entries of a turn; skips the query if no step called the memory tool. */
export async function loadTurnMemoryIfWritten(
  db: Queryable,
  { id }: Pick<GenerationRow, 'id'>,
  steps: readonly Pick<JournalStepRow, 'tool_calls'>[],
): Promise<TurnMemory> {
  const written = steps.some(({ tool_calls }) => tool_calls.some(({ tool_name }) => tool_name === WRITE_MEMORY))
  return written ? loadTurnMemory(db, id) : []
}

export const withMemory = (memory_entries: TurnMemory) => ({ extra: { memory_entries } })

/** Emits the event of a paused turn. */
export function emitPaused(outbox: Outbox, after: GenerationRow, memory: TurnMemory = []): void {
  outbox.emit(generationKind, 'requires_action', after, withMemory(memory))
}

/** Emits the event of a settled turn. */
export function emitSettled(outbox: Outbox, after: GenerationRow, memory: TurnMemory): void {
  outbox.emit(generationKind, after.status === 'completed' ? 'completed' : 'failed', after, withMemory(memory))
}

/**
 * Prepares writes of a module for a turn that completes. Called before the settle transaction, in which the result is
 * called; null, without a round trip, if there is nothing to write.
 * @param turn.isRefused whether the vendor refused to answer: it would refuse every other request with the content too
 */
export type TurnCompletionHook = (
  services: Services,
  generation: GenerationRow,
  turn: { isRefused: boolean },
) => Promise<((outbox: Outbox) => void) | null>

export const turnCompletionHooks = extensionPoint<TurnCompletionHook>({
  name: 'turn completion hooks',
  folder: 'execution/generations/loop',
  description: 'Adds writes to the transaction that settles a completed turn',
})

/** Returns a function that emits the end of a turn with the writes of completion hooks. */
export async function completionHooksFor(
  services: Services,
  generation: GenerationRow,
  turn: { isRefused: boolean },
): Promise<typeof emitSettled> {
  if (generation.status !== 'completed') return emitSettled
  const hooks = await Promise.all(turnCompletionHooks.all().map(prepare => prepare(services, generation, turn)))
  return (outbox, after, memory) => {
    emitSettled(outbox, after, memory)
    for (const addWrites of hooks) addWrites?.(outbox)
  }
}
