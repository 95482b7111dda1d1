import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { ApprovalRow } from './model.ts'

/** Module whose nodes or tasks file approvals. */
export type ApprovalProducer = {
  /**
   * Called when an approval without a tool call is approved, rejected or expired, in that transaction and with the row
   * locked. Withdrawing approvals locks the producer's rows first, so this must lock none of them; it sends a message
   * instead.
   */
  settled(tx: Tx, row: ApprovalRow): Promise<void>
}

export const approvalProducers = extensionPoint<ApprovalProducer>('approval producers')

/** Notifies the producer of an approval that it was resolved or expired. */
export async function notifyProducer(tx: Tx, row: ApprovalRow): Promise<void> {
  for (const { settled } of approvalProducers.all()) await settled(tx, row)
}
