import { AppError } from '../../../core/api/errors.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { isObject } from '../../../core/expressions/evaluate.ts'
import type { ApprovalProducer } from '../../../execution/approvals/approval-producers.ts'
import { approvalKind } from '../../../execution/approvals/model.ts'
import { decisionArtifact, fileNodeApproval } from '../../../execution/approvals/node-approval.ts'
import { resolveSharedTool } from '../../../execution/tools/resolve.ts'
import type { Node } from '../../orchestrations/model.ts'
import type { Advance } from '../engine/advance.ts'
import { runToolContext } from '../engine/context.ts'
import type { ApprovalQuestion } from '../engine/node-execution.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import { type ExpressionState, evaluateText, evaluateValue, storableArtifact } from '../engine/run-state.ts'
import { runWakeQueue } from '../queue.ts'
import { isDecided } from './required-actions.ts'

const EXPIRES_IN = 86_400

/** An approval node asks a person about a call that a later node makes. */
export async function startApprovalNode(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  state: ExpressionState,
): Promise<void> {
  const { tx, run } = advance
  // Whoever drives a run may ask about nothing that is called.
  const asks = node.tool_id !== undefined
  const tool = asks ? await resolveSharedTool(tx, run.project_id, node.tool_id as string) : null
  if (asks && !tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: node.tool_id } })
  const evidence = node.evidence == null ? null : evaluateValue(node, 'evidence', node.evidence, state)
  await fileApproval(advance, row, {
    tool: tool && { tool_id: tool.id, tool_name: tool.name, arguments: row.input ?? {} },
    reasoning: evaluateText(node, 'reasoning', node.reasoning, state),
    evidence: isObject(evidence) ? evidence : evidence === null ? null : { evidence },
    predicted_impact: evaluateText(node, 'predicted_impact', node.predicted_impact, state),
    expires_in: node.expires_in ?? EXPIRES_IN,
  })
  row.progress = { ...row.progress, prompt: node.instructions ?? 'Approval required.' }
}

/** Files an approval for an attempt, which waits for it. */
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
  advance.touch(row)
}

/** What has become of the approval that an attempt waits for. */
export async function collectApproval(advance: Advance, node: Node, row: NodeExecutionRow): Promise<void> {
  const item = await approvalKind.find(advance.tx, row.approval_id as string)
  if (item?.status === 'pending') return
  // What is decided while a run is paused is taken up as it goes on; whoever drives a run says so itself.
  if (advance.paused && !advance.driven) {
    if (isDecided(row)) return
    row.progress = { ...row.progress, decided: true }
    advance.touch(row)
    return
  }
  const label = item?.status ?? 'expired'
  if (row.node_type === 'approval' || label !== 'approved') {
    const artifact = item ? decisionArtifact(advance.services, item) : { decision: label, approval_id: row.approval_id }
    return advance.complete(row, { artifact: storableArtifact(node, artifact), label, through: label === 'approved' })
  }
  // The call is made as it was approved, and is not judged again.
  if (!(await advance.mayProceed())) return
  row.status = 'running'
  row.progress = { ...row.progress, approved: true }
  advance.jobs.push(row)
  advance.touch(row)
}

/** Whoever resolves the approval of a node wakes its run. */
export const runApprovals: ApprovalProducer = {
  async settled(tx: Tx, { project_id, orchestration_run_id }) {
    if (orchestration_run_id !== null) tx.send(runWakeQueue, { run_id: orchestration_run_id, project_id })
  },
}
