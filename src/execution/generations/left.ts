import type { Queryable } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { type OpenWork, readJournal } from './journal-store.ts'
import type { GenerationRow, StepRow } from './model.ts'
import { loadLeft } from './store.ts'

/** A step that the model has answered, settled or not. */
export type AnsweredStep = Pick<StepRow, 'model' | 'ai_provider_id' | 'usage'>

/** What a turn leaves behind that is ended from outside: its settled steps, and the one under way as far as it went. */
export type Left = { steps: readonly AnsweredStep[]; open: OpenWork['open'] }

/** Reads it; one statement, none for a turn that has journalled nothing. */
export async function leftOf(db: Queryable, services: Services, generation: GenerationRow): Promise<Left> {
  if (generation.journalled === 0) return { steps: [], open: null }
  const { steps, journal } = await loadLeft(db, generation)
  const { open } = readJournal(services, generation, journal, generation.step_count)
  return { steps, open }
}
