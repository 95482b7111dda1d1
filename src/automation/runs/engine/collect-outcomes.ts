import type { RecordedFailure } from '../../../core/api/errors.ts'
import { cancelTurnIfActive } from '../../../execution/generations/request/cancel-turn.ts'
import { startsRuns } from '../../orchestrations/definition.ts'
import { type TurnEnd, turnArtifact, turnsOf } from '../nodes/agent.ts'
import { collectApproval } from '../nodes/approval.ts'
import { collectDecision } from '../nodes/decision.ts'
import { cancelNestedRuns, collectNestedRuns } from '../nodes/nested-run.ts'
import { type Advance, isFailure } from './advance.ts'
import type { NodeExecutionRow } from './node-execution-store.ts'
import { nodeFailed, storableArtifact } from './run-state.ts'
import { executeNode, meterCompute } from './start-node.ts'

/** Takes note of what has happened to what is open: times that came, turns, runs and decisions that ended. */
export async function collectOutcomes(advance: Advance): Promise<void> {
  const rows = [...advance.open.values()].filter(({ applied }) => !applied)
  const turns = await openTurns(advance, rows)
  for (const row of rows) {
    try {
      await collectOutcome(advance, row, turns)
    } catch (error) {
      if (!isFailure(error)) throw error
      // What else it started is of no use.
      if (startsRuns(row.node_type)) await cancelNestedRuns(advance, row)
      advance.fail(row, error)
    }
    await advance.breathe()
  }
}

async function openTurns({ tx }: Advance, rows: readonly NodeExecutionRow[]): Promise<ReadonlyMap<string, TurnEnd>> {
  const ids = rows.flatMap(({ status, generation_id }) =>
    generation_id !== null && (status === 'running' || status === 'requires_action') ? generation_id : [],
  )
  return new Map(ids.length === 0 ? [] : (await turnsOf(tx, ids)).map(turn => [turn.id, turn]))
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
    advance.touch(row)
    if (node.type === 'poll' && row.polls > 0) advance.jobs.push(row)
    else await meterCompute(row, () => executeNode(advance, node, row, advance.roots()))
    return
  }
  if (row.status !== 'running' && row.status !== 'requires_action') return
  if (row.generation_id !== null) return collectTurn(advance, row, turns.get(row.generation_id))
  if (row.decision_id !== null) return collectDecision(advance, row)
  if (row.approval_id !== null && row.status === 'requires_action') return collectApproval(advance, node, row)
  if (startsRuns(row.node_type)) {
    if (advance.isPast(row.deadline_at)) throw late(row)
    return collectNestedRuns(advance, node, row)
  }
  if (row.status === 'requires_action' && advance.isPast(row.deadline_at)) await expire(advance, row)
}

const late = ({ node_id }: NodeExecutionRow) =>
  nodeFailed({ id: node_id }, 'timeout', 'The attempt took longer than the timeout of the node')

const GONE: RecordedFailure = { code: 'GENERATION_NOT_FOUND', message: 'The turn was deleted' }

async function collectTurn(advance: Advance, row: NodeExecutionRow, turn: TurnEnd | undefined): Promise<void> {
  if (!turn) throw GONE
  if (turn.status === 'completed')
    return advance.complete(row, {
      artifact: advance.driven
        ? storableArtifact({ id: row.node_id }, turn.output)
        : turnArtifact(advance.node(row.node_id), turn),
    })
  if (turn.status === 'failed') throw turn.error ?? GONE
  if (advance.isPast(row.deadline_at)) {
    await cancelTurnIfActive(advance.tx, advance.services, turn.id)
    throw late(row)
  }
  const status = turn.status === 'requires_action' ? 'requires_action' : 'running'
  if (status === row.status) return
  row.status = status
  if (status === 'requires_action') row.parked = true
  advance.touch(row)
}

/** Nobody answered in time: an edge takes that up, or the run is over. */
async function expire(advance: Advance, row: NodeExecutionRow): Promise<void> {
  const edges = advance.graph.outgoing.get(row.node_id) ?? []
  if (advance.driven || edges.some(({ condition }) => condition === 'expired'))
    return advance.complete(row, { artifact: {}, label: 'expired', through: false })
  await advance.stop('expired', null, row.node_id)
}
