import type { Tx } from '#core/db/writer.ts'
import { extensionPoint } from '#core/declarations.ts'
import type { WorkflowRow } from './model.ts'

/** Called in the transaction that deletes a workflow, after its row is locked; may refuse the delete. */
export const workflowEnds = extensionPoint<(tx: Tx, workflow: WorkflowRow) => Promise<void>>('workflow delete hooks')
