import type { Queryable } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { ExportedExecution } from './snapshot.ts'

/** What the module of executions brings to exports, which do not know it. */
export type ExecutionSource = {
  /** The project and the case of an execution, kept from being deleted until the transaction ends; null without one. */
  reference(db: Queryable, executionId: string): Promise<{ project_id: string; case_id: string } | null>
  /** Bytes of what `read` would give, more or less. */
  bytes(db: Queryable, of: { case_id: string; execution_id: string | null }): Promise<number>
  /**
   * Executions of a case, oldest first, or the one named: as their GET shows them, with steps, and with the definition that
   * they are pinned to. Runs in a transaction of one snapshot that only reads.
   */
  read(db: Queryable, of: { case_id: string; execution_id: string | null }): Promise<readonly ExportedExecution[]>
}

export const exportedExecutions = extensionPoint<ExecutionSource>('executions in exports')
