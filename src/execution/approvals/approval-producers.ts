import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { ApprovalRow } from './model.ts'

/** A module whose nodes or tasks ask people. */
export type ApprovalProducer = {
  /**
   * Inside the transaction that approves, rejects or expires an item that is no call of a tool, behind the item's row. Whoever withdraws
   * items takes them behind rows of its own, so this must lock none of those; a message is enough.
   */
  settled(tx: Tx, row: ApprovalRow): Promise<void>
}

export const approvalProducers = extensionPoint<ApprovalProducer>('approvals of nodes')

/** Tells the module of a node or a task what became of its item. */
export async function notifyProducer(tx: Tx, row: ApprovalRow): Promise<void> {
  for (const { settled } of approvalProducers.all()) await settled(tx, row)
}
