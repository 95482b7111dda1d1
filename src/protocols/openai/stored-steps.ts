import type { Services } from '#core/base/services.ts'
import { readJournal } from '#execution/generations/journal/store.ts'
import { loadTurn } from '#execution/generations/loop/turn-store.ts'
import type { GenerationRow, JournalStepRow } from '#execution/generations/model.ts'
import { readSteps } from '#execution/generations/traces/file.ts'

/** A turn with its steps. */
export type StoredSteps = { generation: GenerationRow; steps: JournalStepRow[] }

/** Returns the steps of a turn; of a paused one with the step whose calls are pending. */
export const readStoredSteps = (services: Services, generation: GenerationRow): Promise<JournalStepRow[]> =>
  generation.status === 'requires_action' ? readPausedSteps(services, generation.id) : readSteps(services, generation)

/** Returns the steps of a paused turn with the step whose calls are pending. */
export async function readPausedSteps(services: Services, id: string): Promise<JournalStepRow[]> {
  const turn = await loadTurn(services.pool, id)
  if (!turn) return []
  const { generation } = turn
  const { open, settled } = readJournal(services, generation, turn.journal, generation.step_count)
  const steps = turn.steps.map(step => settled.get(step.n) ?? step)
  return open ? [...steps, { ...open.step, tool_results: [], completed_at: open.step.started_at }] : steps
}
