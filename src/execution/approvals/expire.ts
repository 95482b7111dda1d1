import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import type { Tx } from '#core/writes/writer.ts'
import { findServedAgent } from '../agents/served-version.ts'
import { expireChain } from '../chains/store.ts'
import { enqueueFollowUp } from './follow-up.ts'
import { type ApprovalRow, approvalKind, approvalWaiters, proposalOf, storableApproval } from './model.ts'
import { expirePending } from './store.ts'

/**
 * Expires an approval that is due, with its event, an exception, and a follow-up turn if the agent reacts to expiry.
 * Returns null for any other approval, so that one expires once.
 */
export async function expireDue(tx: Tx, id: string): Promise<ApprovalRow | null> {
  const row = await expirePending(tx, id)
  if (!row) return null
  const { project_id, proposed_action, agent_id, policy_version, orchestration_run_id, node_id } = row
  tx.emit(approvalKind, 'expired', storableApproval(row))
  fileExceptionInTx(tx, {
    project_id,
    kind: 'approval_expired',
    title: `${proposalOf(row)} was not decided in time`,
    detail: { approval_id: id, tool_id: proposed_action?.tool_id ?? null },
    dedup_key: id,
    orchestration_run_id,
    node_id,
    agent_id,
    guardrail_version: policy_version,
  })
  if (row.origin !== 'tool_call') await approvalWaiters.notify(tx, row)
  if (await reactsToExpiry(tx, row)) await enqueueFollowUp(tx, row)
  else if (row.generation_id !== null) await expireChain(tx, row.generation_id)
  return row
}

async function reactsToExpiry(
  tx: Tx,
  { agent_id, session_id, conversation_id, origin }: ApprovalRow,
): Promise<boolean> {
  if (origin !== 'tool_call' || agent_id === null) return false
  const agent = await findServedAgent(tx, agent_id, { session_id, conversation_id })
  return agent?.on_approval_expiry === 'react'
}
