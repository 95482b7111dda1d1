import { startsRuns } from '#automation/orchestrations/definition/definition.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { cancelTurnIfActive } from '#execution/generations/request/cancel-turn.ts'
import { listTurns, type TurnEnd, turnArtifact } from '../nodes/agent.ts'
import { collectApproval } from '../nodes/approval.ts'
import { collectDecision } from '../nodes/decision.ts'
import { cancelNestedRuns, collectNestedRuns } from '../nodes/nested-run.ts'
import { type Advance, isFailure } from './advance.ts'
import type { NodeExecutionRow } from './node-execution-store.ts'
import { nodeFailed, storableArtifact } from './run-state.ts'
import { meterCompute, startWork } from './start-node.ts'

/**
 * Applies the external events of open node executions: due timers and the ends of turns, nested runs, approvals and
 * decisions.
 */
export async function collectOutcomes(advance: Advance): Promise<void> {
  const rows = [...advance.open.values()].filter(({ applied }) => !applied)
  const turns = await loadOpenTurns(advance, rows)
  for (const row of rows) {
    try {
      await collectOutcome(advance, row, turns)
    } catch (error) {
      if (!isFailure(error)) throw error
      // The node has failed: its other nested runs are cancelled.
      if (startsRuns(row.node_type)) await cancelNestedRuns(advance, row)
      advance.fail(row, error)
    }
    await advance.yieldToEventLoop()
  }
}

async function loadOpenTurns(
  { tx }: Advance,
  rows: readonly NodeExecutionRow[],
): Promise<ReadonlyMap<string, TurnEnd>> {
  const ids = rows.flatMap(({ status, generation_id }) =>
    generation_id !== null && (status === 'running' || status === 'requires_action') ? generation_id : [],
  )
  return new Map(ids.length === 0 ? [] : (await listTurns(tx, ids)).map(turn => [turn.id, turn]))
}

async function collectOutcome(
  advance: Advance,
  row: NodeExecutionRow,
  turns: ReadonlyMap<string, TurnEnd>,
): Promise<void> {
  const node = advance.node(row.node_id)
  if (row.status === 'waiting') {
    if (!advance.isPast(row.wake_at) || !(await advance.mayProceed())) return
    if (node.type === 'delay') return advance.complete(row, { artifact: { waited: row.progress?.waited } })
    row.status = 'running'
    row.wake_at = null
    row.started_at ??= advance.nowText
    advance.markChanged(row)
    if (node.type === 'poll' && row.polls > 0) advance.forWorkers.push(row)
    else await meterCompute(row, () => startWork(advance, node, row, advance.roots()))
    return
  }
  if (row.status !== 'running' && row.status !== 'requires_action') return
  if (row.generation_id !== null) return collectTurn(advance, row, turns.get(row.generation_id))
  if (row.decision_id !== null) return collectDecision(advance, row)
  if (row.approval_id !== null && row.status === 'requires_action') return collectApproval(advance, node, row)
  if (startsRuns(row.node_type)) {
    if (advance.isPast(row.deadline_at)) throw timeoutFailure(row)
    return collectNestedRuns(advance, node, row)
  }
  if (row.status === 'requires_action' && advance.isPast(row.deadline_at)) await expire(advance, row)
}

const timeoutFailure = ({ node_id }: NodeExecutionRow) =>
  nodeFailed({ id: node_id }, 'timeout', 'Node execution exceeded its timeout')

const TURN_DELETED: RecordedFailure = { code: 'GENERATION_NOT_FOUND', message: 'Turn was deleted' }

async function collectTurn(advance: Advance, row: NodeExecutionRow, turn: TurnEnd | undefined): Promise<void> {
  if (!turn) throw TURN_DELETED
  if (turn.status === 'completed')
    return advance.complete(row, {
      artifact: advance.driven
        ? storableArtifact({ id: row.node_id }, turn.output)
        : turnArtifact(advance.node(row.node_id), turn),
    })
  if (turn.status === 'failed') throw turn.error ?? TURN_DELETED
  if (advance.isPast(row.deadline_at)) {
    await cancelTurnIfActive(advance.tx, advance.services, turn.id)
    throw timeoutFailure(row)
  }
  const status = turn.status === 'requires_action' ? 'requires_action' : 'running'
  if (status === row.status) return
  row.status = status
  if (status === 'requires_action') row.parked = true
  advance.markChanged(row)
}

/** Handles a wait without an answer: follows the `expired` edge, or expires the run if there is none. */
async function expire(advance: Advance, row: NodeExecutionRow): Promise<void> {
  const edges = advance.graph.outgoing.get(row.node_id) ?? []
  if (advance.driven || edges.some(({ condition }) => condition === 'expired'))
    return advance.complete(row, { artifact: {}, label: 'expired', through: false })
  await advance.stop('expired', null, row.node_id)
}
