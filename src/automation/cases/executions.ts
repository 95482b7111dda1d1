import type { Context } from '#core/api/operation.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { CaseRow } from './model.ts'

/** Operations of the executions module that cases use without importing it. */
export type CaseExecutions = {
  /**
   * Starts an execution of the case's playbook in the transaction that created the case, with the caller's permissions.
   * Returns the changed case.
   */
  start(
    context: Pick<Context, 'tx' | 'services' | 'caller' | 'allow'>,
    row: CaseRow,
    input: Record<string, unknown>,
  ): Promise<CaseRow>
  statusOf(db: Queryable, id: string): Promise<string | null>
  /** Deletes the executions of a case without active execution. Requires the row lock. */
  remove(tx: Tx, row: CaseRow): Promise<void>
}

export const caseExecutions = extensionPoint<CaseExecutions>({
  name: 'case executions',
  folder: 'automation/cases',
  description: 'Starts, reads and deletes the executions of a case',
})
