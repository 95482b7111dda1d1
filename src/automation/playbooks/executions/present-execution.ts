import { sumTotals } from '#automation/orchestrations/runs/reads/usage.ts'
import { totalsOfRuns } from '#control/usage/report-store.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type ExecutionRow, type PlaybookStepRow, presentExecution } from './model.ts'
import { listSteps, runTreeIds } from './store.ts'

/** Presents an execution with its steps and usage. Reads the steps unless `loadedSteps` is given. */
export async function presentExecutionDetail(
  db: Queryable,
  row: ExecutionRow,
  loadedSteps?: readonly PlaybookStepRow[],
): Promise<ReturnType<typeof presentExecution>> {
  const steps = loadedSteps ?? (await listSteps(db, row.id))
  const ids = [...row.previous_orchestration_run_ids, row.orchestration_run_id]
  const totals = await totalsOfRuns(db, row.orchestration_run_id, runTreeIds(ids))
  return { ...presentExecution(row, steps), usage: sumTotals(totals) }
}
