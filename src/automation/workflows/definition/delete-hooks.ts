import { extensionPoint } from '#core/base/declarations.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { WorkflowRow } from './model.ts'

/** Called in the transaction that deletes a workflow, after its row is locked; may refuse the delete. */
export const workflowEnds = extensionPoint<(tx: Tx, workflow: WorkflowRow) => Promise<void>>('workflow delete hooks')
