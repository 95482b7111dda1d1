import type { Node } from '#automation/orchestrations/definition/model.ts'
import { AppError } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Waiter } from '#core/work/waiters.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type ApprovalRow, approvalKind } from '#execution/approvals/model.ts'
import { decisionArtifact, fileNodeApproval } from '#execution/approvals/node-approval.ts'
import { resolveSharedTool } from '#execution/tools/resolve.ts'
import type { Advance } from '../engine/advance.ts'
import { runToolContext } from '../engine/context.ts'
import type { ApprovalQuestion } from '../engine/node-execution.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import { type ExpressionState, evaluateText, evaluateValue, storableArtifact } from '../engine/run-state.ts'
import { runWakeQueue } from '../queue.ts'
import { isDecided } from './required-actions.ts'

const DEFAULT_EXPIRY_SECONDS = 86_400

/** Files the approval of an approval node, for a call made by a later node. */
export async function startApprovalNode(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  state: ExpressionState,
): Promise<void> {
  const { tx, run } = advance
  // Driven runs can require an approval without a proposed call.
  const hasTool = node.tool_id !== undefined
  const tool = hasTool ? await resolveSharedTool(tx, run.project_id, node.tool_id as string) : null
  if (hasTool && !tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: node.tool_id } })
  const evidence = node.evidence == null ? null : await evaluateValue(advance, node, 'evidence', node.evidence, state)
  await fileApproval(advance, row, {
    tool: tool && { tool_id: tool.id, tool_name: tool.name, arguments: row.input ?? {} },
    reasoning: await evaluateText(advance, node, 'reasoning', node.reasoning, state),
    evidence: isObject(evidence) ? evidence : evidence === null ? null : { evidence },
    predicted_impact: await evaluateText(advance, node, 'predicted_impact', node.predicted_impact, state),
    expires_in: node.expires_in ?? DEFAULT_EXPIRY_SECONDS,
  })
  row.progress = { ...row.progress, prompt: node.instructions ?? 'Approval required.' }
}

/** Files an approval for a node execution, which then waits for it. */
export async function fileApproval(
  advance: Advance,
  row: NodeExecutionRow,
  { tool, ...question }: ApprovalQuestion,
): Promise<void> {
  const { tx, services, run } = advance
  const item = await fileNodeApproval(tx, services, {
    project_id: run.project_id,
    orchestration_run_id: run.id,
    node_id: row.node_id,
    proposed: tool,
    reasoning: null,
    evidence: null,
    predicted_impact: null,
    ...question,
    authority: run.authority,
    ...runToolContext(services, run),
  })
  row.status = 'requires_action'
  row.parked = true
  row.approval_id = item.id
  row.progress = { ...row.progress, expires_at: item.expires_at }
  row.deadline_at = null
  row.leased_until = null
  advance.markChanged(row)
}

/** Applies the state of the approval that a node execution waits for. */
export async function collectApproval(advance: Advance, node: Node, row: NodeExecutionRow): Promise<void> {
  const item = await approvalKind.find(advance.tx, row.approval_id as string)
  if (item?.status === 'pending') return
  // A decision made while the run is paused is applied on resume; drivers apply it themselves.
  if (advance.paused && !advance.driven) {
    if (isDecided(row)) return
    row.progress = { ...row.progress, decided: true }
    advance.markChanged(row)
    return
  }
  const label = item?.status ?? 'expired'
  if (row.node_type === 'approval' || label !== 'approved') {
    const artifact = item ? decisionArtifact(advance.services, item) : { decision: label, approval_id: row.approval_id }
    return advance.complete(row, { artifact: storableArtifact(node, artifact), label, through: label === 'approved' })
  }
  // The call is made with the approved arguments and is not evaluated again.
  if (!(await advance.mayProceed())) return
  row.status = 'running'
  row.progress = { ...row.progress, approved: true }
  advance.forWorkers.push(row)
  advance.markChanged(row)
}

/** Wakes the run when the approval of one of its nodes settles. */
export const runApprovals: Waiter<ApprovalRow> = {
  async settled(tx: Tx, { project_id, orchestration_run_id }) {
    if (orchestration_run_id !== null) tx.send(runWakeQueue, { run_id: orchestration_run_id, project_id })
  },
}
