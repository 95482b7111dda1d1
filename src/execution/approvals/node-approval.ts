import type { ToolContext } from '#core/api/tool-context.ts'
import type { Services } from '#core/base/services.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { nodeSubject, recordDeferredEvaluations } from '../guardrails/evaluation-records.ts'
import { type ApprovalTerms, insertApproval } from './insert-approval.ts'
import { type ApprovalRow, approvalKind, storableApproval } from './model.ts'
import { openFrozen } from './seal.ts'
import { eraseSealedCalls, expirePendingApprovals, loadRequester } from './store.ts'

/** Approval that a node of a run files. */
export type NodeProposal = Omit<ApprovalTerms, 'proposed' | 'frozen'> & {
  project_id: string
  orchestration_run_id: string
  node_id: string
  /** Call of the node; null if the decision is not about a call. */
  proposed: (NonNullable<ApprovalTerms['proposed']> & { arguments: Record<string, unknown> }) | null
  /** Guardrail that required the approval, `<id>@<version>`. */
  policy_version?: string | null
  forbid_self_approval?: boolean
  /** Principal of the run. */
  authority: PrincipalRecord
  tool_context?: ToolContext | null
  guardrail_context?: Record<string, unknown> | null
}

/** Files the approval of a node. The approval executes nothing; the producer module is notified of the decision. */
export async function fileNodeApproval(tx: Tx, services: Services, proposal: NodeProposal): Promise<ApprovalRow> {
  const { project_id, orchestration_run_id, node_id, authority, proposed, ...terms } = proposal
  const { arguments: args, ...called } = proposed ?? { arguments: null }
  const { tool_context = null, guardrail_context = null } = proposal
  const row = await insertApproval(
    tx,
    services,
    {
      project_id,
      origin: 'node',
      orchestration_run_id,
      node_id,
      policy_version: proposal.policy_version ?? null,
      authority,
      forbid_self_approval: proposal.forbid_self_approval ?? false,
      ...(await loadRequester(tx, project_id, authority)),
    },
    {
      ...terms,
      proposed: proposed && (called as NonNullable<ApprovalTerms['proposed']>),
      frozen: args && { arguments: args, tool_context, guardrail_context },
    },
  )
  // Only approvals with a dedup key can conflict.
  if (!row) throw new Error(`no approval could be filed for node ${node_id}`)
  if (proposed) {
    const { tool_id, tool_name, action = tool_name, arguments: args } = proposed
    const subject = {
      subject_id: nodeSubject({ orchestration_run_id, node_id }),
      tool: tool_id ?? tool_name,
      action,
      args,
    }
    tx.afterCommit(() => recordDeferredEvaluations(services, subject, row.id))
  }
  return row
}

/**
 * Expires the pending approvals among `ids` when their producer is deleted. Only their events are emitted; the producer
 * is not notified.
 */
export async function withdrawApprovals(tx: Tx, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  for (const row of await expirePendingApprovals(tx, ids)) tx.emit(approvalKind, 'expired', storableApproval(row))
}

/**
 * Returns the arguments of an approved call: the edited ones, else the proposed ones. Null for any other status, for an
 * approval without a call, and after its sealed call was erased.
 */
export const approvedArguments = (services: Services, row: ApprovalRow): Record<string, unknown> | null =>
  row.status === 'approved' ? (openFrozen(services, row)?.arguments ?? null) : null

/** Erases the sealed calls of resolved approvals once no work needs them. */
export const eraseApproved = (tx: Tx, ids: readonly string[]): Promise<void> => eraseSealedCalls(tx, ids)

export type DecisionArtifact = {
  decision: 'approved' | 'rejected' | 'expired'
  approval_id: string
  resolved_by: string | null
  edited_args: Record<string, unknown> | null
  reason: string | null
  result: unknown
}

/**
 * Returns the decision for the producer of an approval. It contains edited arguments even if content is not stored,
 * until the sealed call is erased: the producer applies its own retention.
 * @param result result of the approved call
 * @throws Error for a pending approval
 */
export function decisionArtifact(services: Services, row: ApprovalRow, result: unknown = null): DecisionArtifact {
  const { id, status, resolved_by, edited_arguments, resolution_reason } = row
  if (status === 'pending') throw new Error(`approval ${id} is pending`)
  const frozen = status === 'approved' && edited_arguments === null ? openFrozen(services, row) : null
  return {
    decision: status,
    approval_id: id,
    resolved_by,
    edited_args: edited_arguments ?? (frozen?.edited ? frozen.arguments : null),
    reason: resolution_reason,
    result,
  }
}
