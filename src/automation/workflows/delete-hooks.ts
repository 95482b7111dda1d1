import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { WorkflowRow } from './model.ts'

/** What goes with a workflow, or keeps it: called behind the lock of its row, in the transaction that deletes it. */
export const workflowEnds = extensionPoint<(tx: Tx, workflow: WorkflowRow) => Promise<void>>('ends of workflows')
