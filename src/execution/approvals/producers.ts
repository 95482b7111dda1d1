import type { Tx } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { ApprovalRow } from './model.ts'

/** A module whose nodes or tasks ask people. */
export type NodeApprovals = {
  /**
   * Inside the transaction that approves, rejects or expires an item that is no call of a tool, behind the item's row. Whoever withdraws
   * items takes them behind rows of its own, so this must lock none of those; a message is enough.
   */
  settled(tx: Tx, row: ApprovalRow): Promise<void>
}

export const nodeApprovals = extensionPoint<NodeApprovals>('approvals of nodes')

/** Tells the module of a node or a task what became of its item. */
export async function tellNode(tx: Tx, row: ApprovalRow): Promise<void> {
  for (const { settled } of nodeApprovals.all()) await settled(tx, row)
}
