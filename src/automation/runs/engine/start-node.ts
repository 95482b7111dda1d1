import { newId } from '../../../core/api/ids.ts'
import type { EventSource } from '../../../core/db/events.ts'
import { isObject } from '../../../core/expressions/evaluate.ts'
import { DECIDE } from '../../orchestrations/definition.ts'
import { parseDuration, parseInstant } from '../../orchestrations/duration.ts'
import type { Node } from '../../orchestrations/model.ts'
import { startAgentNode } from '../nodes/agent.ts'
import { startApprovalNode } from '../nodes/approval.ts'
import { callbackHash } from '../nodes/callback-token.ts'
import { startDecisionNode } from '../nodes/decision.ts'
import { startNestedRuns } from '../nodes/nested-run.ts'
import { type Advance, isFailure } from './advance.ts'
import type { NodeExecutionRow } from './node-execution-store.ts'
import {
  type ExpressionState,
  evaluateText,
  evaluateValue,
  labelOf,
  mapState,
  nodeFailed,
  storableArtifact,
} from './run-state.ts'

/** A node begins: its input is resolved, what can be done at once is done, the rest is left for others or waited for. */
export async function startNode(
  advance: Advance,
  node: Node,
  at: { round: number; state: ExpressionState },
): Promise<void> {
  const row = advance.add(node, { attempt: 1, round: at.round, status: 'running', input: null })
  try {
    await meterCompute(row, async () => {
      // What an approval is asked about are its arguments.
      const [field, mapping] =
        node.type === 'approval'
          ? (['arguments', node.arguments] as const)
          : (['input_mapping', node.input_mapping] as const)
      const input = mapState(node, field, mapping, at.state)
      advance.hold(node, input)
      row.input = input
      await executeNode(advance, node, row, at.state)
    })
  } catch (error) {
    if (!isFailure(error)) throw error
    advance.fail(row, error)
  }
}

/** Does work of an attempt: the time that it takes is metered as its own. */
export async function meterCompute(row: NodeExecutionRow, work: () => Promise<void>): Promise<void> {
  const started = performance.now()
  try {
    await work()
  } finally {
    row.compute_seconds += (performance.now() - started) / 1000
  }
}

/**
 * The work of an attempt whose input is known begins.
 * @throws what fails the attempt
 */
export async function executeNode(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  state: ExpressionState,
): Promise<void> {
  switch (node.type) {
    case 'transform':
      return finish(advance, node, row, {
        artifact: { result: evaluateValue(node, 'expression', node.expression, state) },
      })
    case 'condition': {
      const value = evaluateValue(node, 'expression', node.expression, state)
      const label = advance.driven ? advance.driven.label(node, value) : labelOf(node, value)
      return finish(advance, node, row, { artifact: { label }, label, through: true })
    }
    case 'emit_event':
      return finish(advance, node, row, { artifact: emitEvent(advance, node, row) })
    case 'delay':
      return beginDelay(advance, node, row, state)
    case 'human':
    case 'webhook':
      return beginWait(advance, node, row, state)
    case 'approval':
      return startApprovalNode(advance, node, row, state)
    case 'tool':
    case 'poll':
    case 'knowledge':
    case 'memory_write':
      row.started_at = null
      advance.jobs.push(row)
      return
    case 'agent':
      limitTime(advance, node, row)
      return startAgentNode(advance, node, row, state)
    case 'loop':
    case 'sub_orchestration':
      limitTime(advance, node, row)
      return startNestedRuns(advance, node, row, state)
    case DECIDE:
      // Graphs that callers write have no such nodes.
      if (!advance.driven) throw unknownType(node)
      return startDecisionNode(advance, node, row)
    default:
      throw unknownType(node)
  }
}

const unknownType = (node: Node) => nodeFailed(node, 'unknown_type', `This release knows no nodes of type ${node.type}`)

function finish(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  outcome: Parameters<Advance['complete']>[1],
): void {
  const artifact = storableArtifact(node, outcome.artifact)
  advance.hold(node, artifact)
  advance.complete(row, { ...outcome, artifact })
}

/** An attempt of work that others do ends when its time is over. */
function limitTime(advance: Advance, node: Node, row: NodeExecutionRow): void {
  const ms = node.timeout == null ? null : parseDuration(node.timeout)
  if (ms !== null) row.deadline_at = advance.after(ms)
}

/** Events of graphs are named by them; registered names are refused when a graph is written. */
function emitEvent({ run, tx }: Advance, node: Node, row: NodeExecutionRow) {
  const event_type = node.event_type as string
  const source: EventSource<{ id: string; project_id: string }> = {
    name: 'orchestration_run',
    plural: 'orchestration_runs',
    events: [event_type],
    eventNames: { [event_type]: event_type },
    eventAliases: {},
    present: data => data,
  }
  const event_id = newId('evt')
  tx.emit(source, event_type, run, { data: row.input ?? {}, id: event_id })
  return { emitted: true, event_type, event_id }
}

function beginDelay(advance: Advance, node: Node, row: NodeExecutionRow, state: ExpressionState): void {
  const waits = untilOf(advance, node, state)
  if (waits.until <= advance.now.getTime()) {
    advance.complete(row, { artifact: { waited: waits.waited } })
    return
  }
  row.status = 'waiting'
  row.parked = true
  row.wake_at = new Date(waits.until).toISOString()
  row.progress = { waited: waits.waited }
}

const MAX_WAIT_MS = 366 * 86_400_000

/** Until when a delay waits, and how it says so. */
function untilOf(advance: Advance, node: Node, state: ExpressionState): { until: number; waited: string } {
  const field = node.until != null ? 'until' : 'duration'
  const value = evaluateText(node, field, node[field], state)
  const wrong = (what: string) => nodeFailed(node, 'expression', `${field} gives no ${what}`, { field })
  if (value === null) throw wrong(field === 'until' ? 'time' : 'duration')
  if (field === 'duration') {
    const ms = parseDuration(value)
    if (ms === null) throw wrong('duration of at most 366 days')
    return { until: advance.now.getTime() + ms, waited: value }
  }
  const until = parseInstant(value)
  if (until === null || until - advance.now.getTime() > MAX_WAIT_MS) throw wrong('time within 366 days')
  return { until, waited: new Date(until).toISOString() }
}

/** Somebody outside has to answer. */
function beginWait(advance: Advance, node: Node, row: NodeExecutionRow, state: ExpressionState): void {
  const isHuman = node.type === 'human'
  row.status = 'requires_action'
  row.parked = true
  if (!isHuman) row.callback_hash = callbackHash(advance.services, row)
  if (node.expires_in != null) row.deadline_at = advance.after(node.expires_in * 1000)
  row.progress = {
    prompt: isHuman
      ? (evaluateText(node, 'prompt', node.prompt, state) ?? 'Human input required.')
      : 'Waiting for webhook callback.',
    options: isHuman ? (node.options ?? null) : null,
  }
}

/** What was submitted to a node that waited, as its outcome. */
export function submittedOutcome(output: unknown): Parameters<Advance['complete']>[1] {
  const artifact = isObject(output) ? output : {}
  return { artifact, label: typeof artifact.choice === 'string' ? artifact.choice : null, through: true }
}
