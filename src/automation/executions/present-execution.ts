import { totalsOfRuns } from '../../control/usage/report-store.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { sumTotals } from '../runs/reads/usage.ts'
import { type ExecutionRow, type PlaybookStepRow, presentExecution } from './model.ts'
import { runsOf, stepsOf } from './store.ts'

/** An execution as its GET answers: with its steps and what it used. */
export async function presentExecutionDetail(
  db: Queryable,
  row: ExecutionRow,
  known?: readonly PlaybookStepRow[],
): Promise<ReturnType<typeof presentExecution>> {
  const steps = known ?? (await stepsOf(db, row.id))
  const ids = [...row.previous_orchestration_run_ids, row.orchestration_run_id]
  const totals = await totalsOfRuns(db, row.orchestration_run_id, runsOf(ids))
  return { ...presentExecution(row, steps), usage: sumTotals(totals) }
}
