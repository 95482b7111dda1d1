import { DECIDE } from '#automation/orchestrations/definition/definition.ts'
import { parseDuration, parseInstant } from '#automation/orchestrations/definition/duration.ts'
import type { Node } from '#automation/orchestrations/definition/model.ts'
import { eventKind } from '#control/events/model.ts'
import { isObject } from '#core/base/exact-json.ts'
import { newId } from '#core/base/ids.ts'
import type { EventSource } from '#core/writes/events.ts'
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

/**
 * Starts a node: evaluates its input, completes it immediately if possible, and otherwise leaves it to a worker or a
 * wait.
 */
export async function startNode(
  advance: Advance,
  node: Node,
  at: { round: number; state: ExpressionState },
): Promise<void> {
  const row = advance.add(node, { attempt: 1, round: at.round, status: 'running', input: null })
  try {
    await meterCompute(row, async () => {
      // The input of an approval node is the arguments of the proposed call.
      const [field, mapping] =
        node.type === 'approval'
          ? (['arguments', node.arguments] as const)
          : (['input_mapping', node.input_mapping] as const)
      const input = await mapState(advance, node, field, mapping, at.state)
      advance.countOpenValue(node, input)
      row.input = input
      await startWork(advance, node, row, at.state)
    })
  } catch (error) {
    if (!isFailure(error)) throw error
    advance.fail(row, error)
  }
}

/** Runs work of a node execution and adds its duration to the metered compute time. */
export async function meterCompute(row: NodeExecutionRow, work: () => Promise<void>): Promise<void> {
  const started = performance.now()
  try {
    await work()
  } finally {
    row.compute_seconds += (performance.now() - started) / 1000
  }
}

/**
 * Starts the work of a node execution whose input is evaluated.
 * @throws the failure of the node execution
 */
export async function startWork(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  state: ExpressionState,
): Promise<void> {
  switch (node.type) {
    case 'transform':
      return completeNow(advance, node, row, {
        artifact: { result: await evaluateValue(advance, node, 'expression', node.expression, state) },
      })
    case 'condition': {
      const value = await evaluateValue(advance, node, 'expression', node.expression, state)
      const label = advance.driven ? advance.driven.label(node, value) : labelOf(node, value)
      return completeNow(advance, node, row, { artifact: { label }, label, through: true })
    }
    case 'emit_event':
      return completeNow(advance, node, row, { artifact: emitEvent(advance, node, row) })
    case 'delay':
      return startDelay(advance, node, row, state)
    case 'human':
    case 'webhook':
      return startWait(advance, node, row, state)
    case 'approval':
      return startApprovalNode(advance, node, row, state)
    case 'tool':
    case 'poll':
    case 'knowledge':
    case 'memory_write':
      row.started_at = null
      advance.forWorkers.push(row)
      return
    case 'agent':
      setDeadline(advance, node, row)
      return startAgentNode(advance, node, row, state)
    case 'loop':
    case 'sub_orchestration':
      setDeadline(advance, node, row)
      return startNestedRuns(advance, node, row, state)
    case DECIDE:
      // Graphs written by callers cannot contain these nodes.
      if (!advance.driven) throw unknownType(node)
      return startDecisionNode(advance, node, row)
    default:
      throw unknownType(node)
  }
}

const unknownType = (node: Node) => nodeFailed(node, 'unknown_type', `Node type '${node.type}' is not supported`)

function completeNow(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  outcome: Parameters<Advance['complete']>[1],
): Promise<void> {
  const artifact = storableArtifact(node, outcome.artifact)
  advance.countOpenValue(node, artifact)
  return advance.complete(row, { ...outcome, artifact })
}

/** Sets the deadline of work that other rows complete. */
function setDeadline(advance: Advance, node: Node, row: NodeExecutionRow): void {
  const ms = node.timeout == null ? null : parseDuration(node.timeout)
  if (ms !== null) row.deadline_at = advance.after(ms)
}

/** Emits an event named by the graph. Names of registered events are refused when a graph is written. */
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
  const event_id = newId(eventKind.prefix)
  tx.emit(source, event_type, run, { data: row.input ?? {}, id: event_id })
  return { emitted: true, event_type, event_id }
}

async function startDelay(advance: Advance, node: Node, row: NodeExecutionRow, state: ExpressionState): Promise<void> {
  const delay = await delayEnd(advance, node, state)
  if (delay.until <= advance.now.getTime()) {
    await advance.complete(row, { artifact: { waited: delay.waited } })
    return
  }
  row.status = 'waiting'
  row.parked = true
  row.wake_at = new Date(delay.until).toISOString()
  row.progress = { waited: delay.waited }
}

const MAX_WAIT_MS = 366 * 86_400_000

/** Returns the end of a delay and the value that its artifact shows. */
async function delayEnd(
  advance: Advance,
  node: Node,
  state: ExpressionState,
): Promise<{ until: number; waited: string }> {
  const field = node.until != null ? 'until' : 'duration'
  const value = await evaluateText(advance, node, field, node[field], state)
  const wrong = (what: string) => nodeFailed(node, 'expression', `Result of ${field} is not a ${what}`, { field })
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

/** Starts a wait for a person or a webhook. */
async function startWait(advance: Advance, node: Node, row: NodeExecutionRow, state: ExpressionState): Promise<void> {
  const isHuman = node.type === 'human'
  row.status = 'requires_action'
  row.parked = true
  if (!isHuman) row.callback_hash = callbackHash(advance.services, row)
  if (node.expires_in != null) row.deadline_at = advance.after(node.expires_in * 1000)
  row.progress = {
    prompt: isHuman
      ? ((await evaluateText(advance, node, 'prompt', node.prompt, state)) ?? 'Human input required.')
      : 'Waiting for webhook callback.',
    options: isHuman ? (node.options ?? null) : null,
  }
}

/** Returns the outcome of a node from the submitted input. */
export function submittedOutcome(output: unknown): Parameters<Advance['complete']>[1] {
  const artifact = isObject(output) ? output : {}
  return { artifact, label: typeof artifact.choice === 'string' ? artifact.choice : null, through: true }
}
