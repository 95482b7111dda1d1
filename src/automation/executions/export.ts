import { isIdOf } from '../../core/api/kind.ts'
import type { ExecutionSource } from '../exports/executions.ts'
import { executionKind } from './model.ts'
import { presentExecutionDetail } from './present-execution.ts'
import { bytesOfExecutions, executionsOfCase } from './store.ts'

/** What exports of cases show of executions. */
export const executionSource: ExecutionSource = {
  reference: async (db, id) => {
    const row = isIdOf(executionKind, id) ? await executionKind.find(db, id) : null
    const held = row && (await executionKind.reference(db, id, row.project_id))
    return held && { project_id: held.project_id, case_id: held.case_id }
  },
  bytes: (db, { case_id, execution_id }) => bytesOfExecutions(db, case_id, execution_id),
  async read(db, { case_id, execution_id }) {
    const rows = await executionsOfCase(db, case_id, execution_id)
    const shown = []
    for (const row of rows) {
      const { steps, ...execution } = await presentExecutionDetail(db, row)
      shown.push({ ...execution, steps: steps ?? [], definition: row.definition })
    }
    return shown
  },
}
