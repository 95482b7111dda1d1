import type { ToolContext } from '../../core/api/tool-context.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { nodeSubject, recordDeferredEvaluations } from '../guardrails/evaluation-records.ts'
import { type ApprovalTerms, insertItem } from './insert-approval.ts'
import { type ApprovalRow, approvalKind, storableApproval } from './model.ts'
import { openFrozen } from './seal.ts'
import { eraseSealed, expireWithdrawn, requesterOf } from './store.ts'

/** What a node of a run asks people. */
export type NodeProposal = Omit<ApprovalTerms, 'proposed' | 'frozen'> & {
  project_id: string
  orchestration_run_id: string
  node_id: string
  /** What the node would call; null where people decide about nothing that is called. */
  proposed: (NonNullable<ApprovalTerms['proposed']> & { arguments: Record<string, unknown> }) | null
  /** The guardrail that asked, `<id>@<version>`. */
  policy_version?: string | null
  forbid_self_approval?: boolean
  /** Whom the run runs as. */
  authority: PrincipalRecord
  tool_context?: ToolContext | null
  guardrail_context?: Record<string, unknown> | null
}

/** Files what a node asks people. Nothing is executed for it: the module of the node is told what became of it. */
export async function fileNodeApproval(tx: Tx, services: Services, proposal: NodeProposal): Promise<ApprovalRow> {
  const { project_id, orchestration_run_id, node_id, authority, proposed, ...asked } = proposal
  const { arguments: args, ...called } = proposed ?? { arguments: null }
  const { tool_context = null, guardrail_context = null } = proposal
  const row = await insertItem(
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
      ...(await requesterOf(tx, project_id, authority)),
    },
    {
      ...asked,
      proposed: proposed && (called as NonNullable<ApprovalTerms['proposed']>),
      frozen: args && { arguments: args, tool_context, guardrail_context },
    },
  )
  // Only items with a dedup key make way for each other.
  if (!row) throw new Error(`no approval could be filed for the node ${node_id}`)
  if (proposed) {
    const { tool_id, tool_name, action = tool_name, arguments: args } = proposed
    const asked = { asked_by: nodeSubject({ orchestration_run_id, node_id }), tool: tool_id ?? tool_name, action, args }
    tx.afterCommit(() => recordDeferredEvaluations(services, asked, row.id))
  }
  return row
}

/**
 * Expires pending items whose producer goes away: nobody is told but by their event. Others of these ids stay as they
 * are.
 */
export async function withdrawApprovals(tx: Tx, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  for (const row of await expireWithdrawn(tx, ids)) tx.emit(approvalKind, 'expired', storableApproval(row))
}

/**
 * What an approved item goes on with: the edited arguments, or else the proposed ones. Null for any other item, for one that
 * proposes no call, and once it was forgotten.
 */
export const approvedArguments = (services: Services, row: ApprovalRow): Record<string, unknown> | null =>
  row.status === 'approved' ? (openFrozen(services, row)?.arguments ?? null) : null

/** Erases what resolved items were kept for, once nothing goes on with it any more. */
export const eraseApproved = (tx: Tx, ids: readonly string[]): Promise<void> => eraseSealed(tx, ids)

export type DecisionArtifact = {
  decision: 'approved' | 'rejected' | 'expired'
  approval_id: string
  resolved_by: string | null
  edited_args: Record<string, unknown> | null
  reason: string | null
  result: unknown
}

/**
 * What became of an item, for its producer. Edited arguments are in it also where no content is kept, as long as the item
 * was not forgotten: the producer keeps no more of it than it keeps of anything.
 * @param result what the call gave that was approved
 * @throws Error for an item that waits
 */
export function decisionArtifact(services: Services, row: ApprovalRow, result: unknown = null): DecisionArtifact {
  const { id, status, resolved_by, edited_arguments, resolution_reason } = row
  if (status === 'pending') throw new Error(`the approval ${id} waits`)
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
