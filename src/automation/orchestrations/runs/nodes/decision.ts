import type { Node } from '#automation/orchestrations/definition/model.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import type { Waiter } from '#core/work/waiters.ts'
import { insertDecisions } from '#execution/deciders/create-decisions.ts'
import { inputTexts } from '#execution/deciders/input.ts'
import { type DecisionRow, deciderKind, decisionKind } from '#execution/deciders/model.ts'
import type { Advance } from '../engine/advance.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import { storableArtifact } from '../engine/run-state.ts'
import { wakeWaitingRun } from './wake-waiting-run.ts'

/** Creates the decision of a decide node; the node ends when the decision settles. */
export async function startDecisionNode(advance: Advance, node: Node, row: NodeExecutionRow): Promise<void> {
  const { tx, services, run } = advance
  const id = node.metadata?.decider_id as string
  const decider = await deciderKind.reference(tx, id, run.project_id)
  if (!decider) throw new AppError('RESOURCE_NOT_FOUND', { message: 'Decider not found', meta: { id } })
  const [text] = inputTexts([row.input ?? {}], () => 'input_mapping')
  const { version, author, questions, agent_id, tool_id } = decider
  const [decision] = await tx.nested(nested =>
    insertDecisions(
      nested,
      { services, caller: null, principal: run.authority },
      { project_id: run.project_id, decider: { id, version, author }, questions, backend: { agent_id, tool_id } },
      [{ text, metadata: null }],
      { permission: () => run.permission },
    ),
  )
  row.decision_id = decision.id
}

const DECISION_DELETED: RecordedFailure = { code: 'RESOURCE_NOT_FOUND', message: 'Decision was deleted' }

/** Applies the state of the decision that a node execution waits for. */
export async function collectDecision(advance: Advance, row: NodeExecutionRow): Promise<void> {
  const decision = await decisionKind.find(advance.tx, row.decision_id as string)
  if (!decision) throw DECISION_DELETED
  const { id: decision_id, status, answers, answers_by_name, error } = decision
  if (status === 'failed') throw error ?? DECISION_DELETED
  if (status !== 'completed') return
  await advance.complete(row, {
    artifact: storableArtifact({ id: row.node_id }, { decision_id, answers, answers_by_name }),
  })
}

/** Wakes the run when the decision of one of its nodes settles. By orchestration_node_executions_decision. */
export const runDecisions: Waiter<DecisionRow> = {
  settled: (tx, { id }) => wakeWaitingRun(tx, 'decision_id', id),
}
