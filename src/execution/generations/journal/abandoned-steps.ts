import type { Queryable } from '../../../core/db/sql.ts'
import type { Services } from '../../../core/process/services.ts'
import type { GenerationRow, JournalStepRow } from '../model.ts'
import { loadAbandonedSteps } from '../store.ts'
import { type JournalState, readJournal } from './store.ts'

/** A step that the model has answered, settled or not. */
export type AnsweredStep = Pick<JournalStepRow, 'model' | 'ai_provider_id' | 'usage'>

/** What a turn leaves behind that is ended from outside: its settled steps, and the one under way as far as it went. */
export type AbandonedSteps = { steps: readonly AnsweredStep[]; open: JournalState['open'] }

/** Reads it; one statement, none for a turn that has journalled nothing. */
export async function findAbandonedSteps(
  db: Queryable,
  services: Services,
  generation: GenerationRow,
): Promise<AbandonedSteps> {
  if (generation.journalled === 0) return { steps: [], open: null }
  const { steps, journal } = await loadAbandonedSteps(db, generation)
  const { open } = readJournal(services, generation, journal, generation.step_count)
  return { steps, open }
}
