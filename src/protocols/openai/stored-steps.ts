import type { Services } from '#core/base/services.ts'
import { readJournal } from '#execution/generations/journal/store.ts'
import { loadTurn } from '#execution/generations/loop/turn-store.ts'
import type { GenerationRow, JournalStepRow } from '#execution/generations/model.ts'
import { readSteps } from '#execution/generations/traces/file.ts'

/** A turn with its steps. */
export type StoredSteps = { generation: GenerationRow; steps: JournalStepRow[] }

/** Returns the steps of a turn; of a paused one with the step whose calls are pending. */
export async function readStoredSteps(services: Services, generation: GenerationRow): Promise<JournalStepRow[]> {
  if (generation.status !== 'requires_action') return readSteps(services, generation)
  const turn = await loadTurn(services.pool, generation.id)
  if (!turn) return []
  const { open, settled } = readJournal(services, generation, turn.journal, generation.step_count)
  const steps = turn.steps.map(step => settled.get(step.n) ?? step)
  return open ? [...steps, { ...open.step, tool_results: [], completed_at: open.step.started_at }] : steps
}
