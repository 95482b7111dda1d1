import { extensionPoint } from '#core/base/declarations.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { ExportedExecution } from './snapshot.ts'

/** Operations of the executions module that exports use without importing it. */
export type ExecutionSource = {
  /** Returns the project and the case of an execution, locked against deletion. */
  reference(db: Queryable, executionId: string): Promise<{ project_id: string; case_id: string } | null>
  /** Returns the approximate size of the result of `read`, in bytes. */
  bytes(db: Queryable, scope: { case_id: string; execution_id: string | null }): Promise<number>
  /**
   * Returns the executions of a case, oldest first, or one execution, as presented by their GET operation, with steps
   * and pinned definition. Runs in a read-only repeatable-read transaction.
   */
  read(db: Queryable, scope: { case_id: string; execution_id: string | null }): Promise<readonly ExportedExecution[]>
}

export const exportedExecutions = extensionPoint<ExecutionSource>('exported executions')
