import { fileApproval } from '../nodes/approval.ts'
import { type Advance, isFailure } from './advance.ts'
import type { NodeEnd, NodeWorkOutcome, SuccessfulToolCall } from './node-execution.ts'
import type { ClaimedNode, NodeExecutionRow } from './node-execution-store.ts'
import { storableArtifact } from './run-state.ts'

/**
 * Ends the work of a worker on a node execution: completes or fails it, files its approval, or schedules its next poll.
 * @returns false if the claim was lost
 */
export async function endNode(advance: Advance, { execution, outcome: result, started }: NodeEnd): Promise<boolean> {
  const row = findClaimedRow(advance, execution)
  if (!row) return false
  row.compute_seconds += (performance.now() - started) / 1000
  row.leased_until = null
  row.started_at ??= advance.nowText
  advance.markChanged(row)
  if ('error' in result) {
    if (row.node_type === 'poll') row.polls += 1
    advance.fail(row, result.error)
    return true
  }
  try {
    await applyOutcome(advance, row, result)
  } catch (error) {
    if (!isFailure(error)) throw error
    advance.fail(row, error)
  }
  return true
}

function findClaimedRow(advance: Advance, execution: ClaimedNode): NodeExecutionRow | null {
  const row = advance.open.get(execution.id)
  return row?.status === 'running' && row.deliveries === execution.deliveries && row.polls === execution.polls
    ? row
    : null
}

async function applyOutcome(advance: Advance, row: NodeExecutionRow, outcome: NodeWorkOutcome): Promise<void> {
  const node = advance.node(row.node_id)
  if ('approval' in outcome) return fileApproval(advance, row, outcome.approval)
  if ('pollAgainMs' in outcome) {
    row.polls += 1
    advance.run.steps += 1
    if (advance.run.steps >= advance.services.config.ORCHESTRATION_RUN_MAX_STEPS) throw advance.tooManySteps()
    row.status = 'waiting'
    row.parked = true
    row.deliveries = 0
    row.wake_at = advance.after(outcome.pollAgainMs)
    return
  }
  if (node.type === 'poll') row.polls += 1
  const artifact = storableArtifact(node, outcome.artifact)
  advance.countOpenValue(node, artifact)
  await advance.complete(row, { ...outcome, artifact })
  if (outcome.called) recordToolCall(advance, row, outcome.called)
}

const recordToolCall = (advance: Advance, { node_id }: NodeExecutionRow, called: SuccessfulToolCall): void =>
  advance.addActivity({
    project_id: advance.project_id,
    kind: 'action_executed',
    summary: `${called.tool_name} was called`,
    detail: { ...called, node_id },
    orchestration_run_id: advance.run.id,
    ref_id: called.tool_id,
  })
