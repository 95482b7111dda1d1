import type { Context } from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { CaseRow } from './model.ts'

/** What the module of executions does for cases, which do not know it. */
export type CaseExecutions = {
  /**
   * Starts an execution of the case's playbook in the transaction that made the case, with the caller's rights; returns the
   * case as it stands then. Raises what refuses a start.
   */
  start(
    context: Pick<Context, 'tx' | 'services' | 'caller' | 'allow'>,
    row: CaseRow,
    input: Record<string, unknown>,
  ): Promise<CaseRow>
  /** The status of an execution. */
  statusOf(db: Queryable, id: string): Promise<string | null>
  /** Deletes the executions of a case, none of which is under way, under its lock. */
  remove(tx: Tx, row: CaseRow): Promise<void>
}

/** What else goes with a case that is deleted, under its lock. */
export const caseDeleteHooks = extensionPoint<(tx: Tx, row: CaseRow) => Promise<void>>('what goes with cases')

export const caseExecutions = extensionPoint<CaseExecutions>('executions of cases')
