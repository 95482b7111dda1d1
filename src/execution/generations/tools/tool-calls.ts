import type { UsageDraft } from '#control/usage/meter.ts'
import type { Origin } from '#core/api/call.ts'
import { systemClock } from '#core/base/clock.ts'
import { AppError } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { storableValue } from '#core/base/storable-text.ts'
import type { SpanStart } from '#core/base/telemetry.ts'
import { traced } from '#core/base/telemetry.ts'
import { ATTRIBUTE, MUSTER, OPERATION } from '#core/base/telemetry-names.ts'
import { callTool, openCall } from '#execution/tools/call.ts'
import { callFailed, failedCall, WITHHELD } from '../journal/step.ts'
import type { Entry } from '../journal/store.ts'
import { attributionOf, draftLostCall } from '../loop/metering.ts'
import type { ToolCallOutcome } from '../model.ts'
import { NESTED_AGENT } from '../streams/frames.ts'
import { type AllowedCall, type CallDecisionInput, decideCall, failureOutcome } from './call-decision.ts'
import type { TurnTool } from './toolbox.ts'

/** Input for the calls of one step: decided in sequence, made concurrently, journalled before and after. */
type ToolCallsInput = CallDecisionInput & {
  turn: Origin
  /** Releases the slot of the worker while `work` waits for other messages. */
  releaseSlotWhile: <T>(work: () => Promise<T>) => Promise<T>
  /** Whether events contain the activity for end users. */
  labels: boolean
  /** Whether a boundary of the turn's agent, or of an agent that led to it, narrows the turn. */
  bounded: boolean
  /** Writes journal entries and events. @throws TurnClaimLost */
  journal: (entries: Entry[], events: StreamEvent[]) => Promise<void>
  /** Adds the usage of a call, which is written with its outcome. */
  addUsage: (draft: UsageDraft) => void
  /** Called after each successful call. */
  onExecuted: (tool: TurnTool) => void
}

/** Activity of a tool whose binding has no label. */
export const DEFAULT_LABEL = 'Working'

/** A stream event without a sequence number. */
export type StreamEvent = { event: string; data: object }

/** Calls for the client, the names of the tools called, and events to be written with the next statement. */
export type ToolCallResults = { pending: AllowedCall[]; called: ReadonlySet<string>; events: StreamEvent[] }

/**
 * Makes the calls of a step that have no outcome. A failed call does not fail the turn: the model receives the failure.
 * @throws the reason of the signal, TurnClaimLost, errors while the database is unavailable
 */
export async function executeToolCalls(input: ToolCallsInput): Promise<ToolCallResults> {
  const { step, outcomes, signal } = input
  const allowed: AllowedCall[] = []
  const called = new Set<string>()
  const evaluated: Entry[] = []
  const filed: StreamEvent[] = []
  for (const [position, { tool_name }] of step.tool_calls.entries()) {
    if (outcomes.has(position)) {
      called.add(tool_name)
      continue
    }
    const decision = await decideCall(input, position)
    signal.throwIfAborted()
    if ('allowed' in decision) allowed.push(decision.allowed)
    else outcomes.set(position, decision.outcome)
    if ('outcome' in decision && decision.outcome === WITHHELD) {
      const tool = input.tools.get(tool_name)
      if (!tool?.perform) input.addUsage(draftLostCall(input.generation, step.tool_calls[position], tool))
    }
    if ('allowed' in decision || decision.evaluated) called.add(tool_name)
    if ('outcome' in decision && 'approval' in decision)
      filed.push({ event: 'approval', data: { tool_call_id: step.tool_calls[position].id, ...decision.approval } })
    if ('outcome' in decision && decision.evaluated)
      evaluated.push({ n: step.n, position: position + 1, value: decision.outcome })
  }
  const isClientCall = ({ tool }: AllowedCall) => tool.callable.type === 'client'
  const events = await makeCalls(
    input,
    allowed.filter(call => !isClientCall(call)),
    evaluated,
    filed,
  )
  return { pending: allowed.filter(isClientCall), called, events }
}

/**
 * Makes calls, at most GENERATION_TOOL_CONCURRENCY concurrently. Each start is journalled before its call and each
 * outcome after it, except the last ones, which are written with the step. Returns the events of these last outcomes.
 * @param evaluated outcomes of calls that guardrails did not allow; written with the first start, so that no call is
 *   sent to approval twice
 * @param filed events of the approvals among them
 */
async function makeCalls(
  input: ToolCallsInput,
  calls: AllowedCall[],
  evaluated: Entry[],
  filed: StreamEvent[],
): Promise<StreamEvent[]> {
  const { services, step, signal, started, outcomes, journal } = input
  const waiting = [...calls]
  const running = new Map<number, Promise<void>>()
  let unwritten = evaluated
  let events = filed
  let fatal: unknown = null
  const nameOf = (position: number) => {
    const { id: tool_call_id, tool_name } = step.tool_calls[position]
    const label = input.tools.get(tool_name)?.label
    return { tool_call_id, tool_name, ...(input.labels && { label: label ?? DEFAULT_LABEL }) }
  }
  while (waiting.length > 0 || running.size > 0) {
    const starting = waiting.splice(0, services.config.GENERATION_TOOL_CONCURRENCY - running.size)
    const starts = starting.map(({ position }): Entry => ({ n: step.n, position: position + 1, value: null }))
    const startEvents = starting.flatMap((call): StreamEvent[] => [
      { event: 'tool_call', data: nameOf(call.position) },
      ...nestedTurnEvents(step.tool_calls[call.position].id, call),
    ])
    await journal([...unwritten, ...starts], [...events, ...startEvents])
    const repeated = new Set(starting.filter(({ position }) => started.has(position)))
    unwritten = []
    events = []
    for (const { position } of starting) started.add(position)
    if (starting.length > 0) await injectFault(services, 'before_tool')
    for (const call of starting)
      running.set(
        call.position,
        timedCall(input, call, repeated.has(call)).then(
          outcome => void outcomes.set(call.position, outcome),
          error => {
            fatal ??= error
          },
        ),
      )
    await Promise.race(running.values())
    if (fatal !== null) throw fatal
    await injectFault(services, 'after_tool')
    for (const position of running.keys()) {
      const value = outcomes.get(position)
      if (!value) continue
      running.delete(position)
      unwritten.push({ n: step.n, position: position + 1, value })
      events.push({ event: 'tool_result', data: { ...nameOf(position), ok: value.error === null } })
      const call = calls.find(each => each.position === position)
      if (value.error === null && call?.tool.eventsOf) events.push(...call.tool.eventsOf(call.args))
    }
    signal.throwIfAborted()
  }
  return events
}

/** Operation that runs another agent. */
const RUN_AGENT = 'create-agent-generation'

/** Returns the event of a call that runs another agent, for protocol mounts. */
function nestedTurnEvents(tool_call_id: string, { tool: { action, callable }, args }: AllowedCall): StreamEvent[] {
  if (callable.type !== 'platform' || action !== RUN_AGENT) return []
  const { agent_id } = { ...args, ...callable.preset_parameters }
  return typeof agent_id === 'string' ? [{ event: NESTED_AGENT, data: { tool_call_id, agent_id } }] : []
}

/** Makes a call and returns its outcome with its times. `repeated`: an earlier attempt had started the call. */
const timedCall = (input: ToolCallsInput, call: AllowedCall, repeated: boolean): Promise<ToolCallOutcome> =>
  traced(toolSpan, { input, call }, async span => {
    const started_at = systemClock.now().toISOString()
    const outcome = await makeCall(input, call)
    if (outcome.error) span?.fail(outcome.error.code)
    const completed_at = systemClock.now().toISOString()
    return { ...outcome, started_at, completed_at, ...(repeated && { recovery: 'repeated' as const }) }
  })

function toolSpan({
  input: { step },
  call: { tool, position },
}: {
  input: Pick<ToolCallsInput, 'step'>
  call: AllowedCall
}): SpanStart {
  const { type } = tool.callable
  return {
    name: `${OPERATION.tool} ${tool.name}`,
    requests: true,
    attributes: {
      [ATTRIBUTE.operation]: OPERATION.tool,
      [ATTRIBUTE.toolName]: tool.name,
      [ATTRIBUTE.toolCall]: step.tool_calls[position].id,
      [ATTRIBUTE.toolType]: type === 'client' ? 'function' : 'extension',
      [ATTRIBUTE.mcpMethod]: type === 'mcp' ? 'tools/call' : null,
      [MUSTER.toolKind]: type,
      [MUSTER.verdict]: 'execute',
    },
  }
}

async function makeCall(input: ToolCallsInput, { position, tool, args }: AllowedCall): Promise<ToolCallOutcome> {
  const { services, generation, data, step, turn, caller, signal, releaseSlotWhile } = input
  const record = `${generation.id}:${step.tool_calls[position].id}`
  const call = openCall(services, {
    action: tool.action,
    input: args,
    caller,
    context: data.tool_context ?? {},
    idempotencyKey: record,
    metering: { ...attributionOf(generation), source: 'agent', record, add: input.addUsage },
    turn,
    judged: true,
    signal,
  })
  try {
    const perform = () => (tool.perform ? tool.perform(args) : callTool(services, tool.callable, call))
    const result = storableValue(
      (await (tool.callable.type === 'platform' ? releaseSlotWhile(perform) : perform())) ?? null,
    )
    const maxBytes = services.config.GENERATION_TOOL_RESULT_MAX_BYTES
    if (Buffer.byteLength(JSON.stringify(result)) > maxBytes)
      return callFailed(`The result exceeds ${maxBytes} bytes`, 'result_too_large')
    if (!tool.perform) input.onExecuted(tool)
    return { result, error: null }
  } catch (error) {
    const refused = error instanceof AppError && error.cause instanceof AppError ? error.cause : null
    if (input.bounded && refused?.code === 'FORBIDDEN')
      return failedCall('FORBIDDEN', 'The agent or its principal is not permitted to do this', refused.meta)
    return failureOutcome(services, error, signal)
  }
}
