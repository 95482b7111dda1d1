import { addException } from '../../control/exceptions/file.ts'
import type { Tx } from '../../core/db/write.ts'
import { findServedAgent } from '../agents/served.ts'
import { expireChain } from '../chains/store.ts'
import { type ApprovalRow, approvalKind, proposalOf, shown } from './model.ts'
import { tellNode } from './producers.ts'
import { continueQueue } from './queue.ts'
import { expirePending, insertAttempt } from './store.ts'

/** Wakes what follows from an item. */
export async function sendContinuation(tx: Tx, { id, project_id }: ApprovalRow): Promise<void> {
  tx.send(continueQueue, { approval_id: id, attempt_id: await insertAttempt(tx, id), project_id })
}

/**
 * Expires an item whose time is over, with what follows: its event, an exception, and a turn that tells the model where
 * the agent wants one. Null for any other item: one expires once.
 */
export async function expireNow(tx: Tx, id: string): Promise<ApprovalRow | null> {
  const row = await expirePending(tx, id)
  if (!row) return null
  const { project_id, proposed_action, agent_id, policy_version, orchestration_run_id, node_id } = row
  tx.emit(approvalKind, 'expired', shown(row))
  addException(tx, {
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
  if (row.origin !== 'tool_call') await tellNode(tx, row)
  if (await reacts(tx, row)) await sendContinuation(tx, row)
  else if (row.generation_id !== null) await expireChain(tx, row.generation_id)
  return row
}

async function reacts(tx: Tx, { agent_id, session_id, conversation_id, origin }: ApprovalRow): Promise<boolean> {
  if (origin !== 'tool_call' || agent_id === null) return false
  const agent = await findServedAgent(tx, agent_id, { session_id, conversation_id })
  return agent?.on_approval_expiry === 'react'
}
