import { isIdOf } from '#core/api/kind.ts'
import type { Queryable } from '#core/db/sql.ts'
import { executionKind } from '../executions/model.ts'
import { presentExecutionDetail } from '../executions/present-execution.ts'
import { listCaseExecutions } from '../executions/store.ts'
import type { ExportedExecution } from './snapshot.ts'

/** Returns the project and the case of an execution, locked against deletion. */
export async function lockExecution(
  db: Queryable,
  id: string,
): Promise<{ project_id: string; case_id: string } | null> {
  const row = isIdOf(executionKind, id) ? await executionKind.find(db, id) : null
  return row && executionKind.reference(db, id, row.project_id)
}

/**
 * Returns the executions of a case, oldest first, or one execution, as presented by their GET operation, with steps and
 * pinned definition. Runs in a read-only repeatable-read transaction.
 */
export async function presentExecutions(
  db: Queryable,
  { case_id, execution_id }: { case_id: string; execution_id: string | null },
): Promise<ExportedExecution[]> {
  const executions = []
  for (const row of await listCaseExecutions(db, case_id, execution_id)) {
    const { steps, ...execution } = await presentExecutionDetail(db, row)
    executions.push({ ...execution, steps: steps ?? [], definition: row.definition })
  }
  return executions
}
