import type { UsageDraft } from '../../../control/usage/meter.ts'
import { AppError } from '../../../core/api/errors.ts'
import { storableValue } from '../../../core/api/storable-text.ts'
import type { Origin } from '../../../core/invoke/call.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import { callTool, openCall } from '../../tools/call.ts'
import { callFailed, failedCall, UNKNOWN } from '../journal/open-step.ts'
import type { Entry } from '../journal/store.ts'
import { attributionOf, lostTurnCall } from '../loop/metering.ts'
import type { ToolCallOutcome } from '../model.ts'
import { type AllowedCall, type CallDecisionInput, decideCall, failureOutcome } from './call-decision.ts'
import type { TurnTool } from './toolbox.ts'

/** The calls of one step: decided one by one, made side by side, journalled before and after. */
type Calling = CallDecisionInput & {
  turn: Origin
  /** Does work that waits for other messages. */
  aside: <T>(work: () => Promise<T>) => Promise<T>
  /** Whether a boundary narrows the turn: that of its agent, or of one that led to it. */
  bounded: boolean
  /** Keeps entries of the journal. Raises TurnLost. */
  write: (entries: Entry[], told: StreamEvent[]) => Promise<void>
  /** Takes the usage of each call, which is written with its outcome. */
  meter: (draft: UsageDraft) => void
  /** Called for each call that succeeded. */
  executed: (tool: TurnTool) => void
}

/** An event of the stream that is yet to be numbered. */
export type StreamEvent = { event: string; data: object }

/** The calls that are for the client to make, the names of those that were no mistake, and events to be told with what is written next. */
export type ToolCallResults = { pending: AllowedCall[]; called: ReadonlySet<string>; told: StreamEvent[] }

/**
 * Makes the calls of a step that have no outcome yet. A failed call never fails the turn: the model sees the failure.
 * @throws the reason of the signal, TurnLost, what is thrown while the database is away
 */
export async function executeToolCalls(calling: Calling): Promise<ToolCallResults> {
  const { step, outcomes, signal } = calling
  const released: AllowedCall[] = []
  const called = new Set<string>()
  const judged: Entry[] = []
  for (const [position, { tool_name }] of step.tool_calls.entries()) {
    if (outcomes.has(position)) {
      called.add(tool_name)
      continue
    }
    const decided = await decideCall(calling, position)
    signal.throwIfAborted()
    if ('released' in decided) released.push(decided.released)
    else outcomes.set(position, decided.outcome)
    if ('outcome' in decided && decided.outcome === UNKNOWN) {
      const tool = calling.tools.get(tool_name)
      if (!tool?.perform) calling.meter(lostTurnCall(calling.generation, step.tool_calls[position], tool))
    }
    if ('released' in decided || decided.judged) called.add(tool_name)
    if ('outcome' in decided && decided.judged)
      judged.push({ n: step.n, position: position + 1, value: decided.outcome })
  }
  const isClients = ({ tool }: AllowedCall) => tool.callable.type === 'client'
  const told = await runAll(
    calling,
    released.filter(call => !isClients(call)),
    judged,
  )
  return { pending: released.filter(isClients), called, told }
}

/**
 * Makes calls, a number of them at once: each is noted as started before it is made, and its outcome behind it, but for
 * the last, which is written with what follows. Returns what is to be told with that.
 * @param judged outcomes of calls that rules do not release; written with the first start, so that nobody is asked twice
 */
async function runAll(calling: Calling, calls: AllowedCall[], judged: Entry[]): Promise<StreamEvent[]> {
  const { services, step, signal, started, outcomes, write } = calling
  const waiting = [...calls]
  const running = new Map<number, Promise<void>>()
  let unwritten = judged
  let told: StreamEvent[] = []
  let fatal: unknown = null
  const nameOf = (position: number) => {
    const { id: tool_call_id, tool_name } = step.tool_calls[position]
    return { tool_call_id, tool_name }
  }
  while (waiting.length > 0 || running.size > 0) {
    const starting = waiting.splice(0, services.config.GENERATION_TOOL_CONCURRENCY - running.size)
    const starts = starting.map(({ position }): Entry => ({ n: step.n, position: position + 1, value: null }))
    const said = starting.map(({ position }): StreamEvent => ({ event: 'tool_call', data: nameOf(position) }))
    await write([...unwritten, ...starts], [...told, ...said])
    unwritten = []
    told = []
    for (const { position } of starting) started.add(position)
    if (starting.length > 0) await injectFault(services, 'before_tool')
    for (const call of starting)
      running.set(
        call.position,
        run(calling, call).then(
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
      told.push({ event: 'tool_result', data: { ...nameOf(position), ok: value.error === null } })
    }
    signal.throwIfAborted()
  }
  return told
}

async function run(calling: Calling, { position, tool, args }: AllowedCall): Promise<ToolCallOutcome> {
  const { services, generation, work, step, turn, caller, signal, aside } = calling
  const record = `${generation.id}:${step.tool_calls[position].id}`
  const call = openCall(services, {
    action: tool.action,
    input: args,
    caller,
    context: work.tool_context ?? {},
    idempotencyKey: record,
    metering: { ...attributionOf(generation), source: 'agent', record, add: calling.meter },
    turn,
    judged: true,
    signal,
  })
  try {
    const { perform } = tool
    const made = () => (perform ? perform(args) : callTool(services, tool.callable, call))
    const result = storableValue((await (tool.callable.type === 'platform' ? aside(made) : made())) ?? null)
    if (Buffer.byteLength(JSON.stringify(result)) > services.config.GENERATION_TOOL_RESULT_MAX_BYTES)
      return callFailed('The result is larger than a turn can keep', 'result_too_large')
    if (!perform) calling.executed(tool)
    return { result, error: null }
  } catch (error) {
    const refused = error instanceof AppError && error.cause instanceof AppError ? error.cause : null
    if (calling.bounded && refused?.code === 'FORBIDDEN')
      return failedCall('FORBIDDEN', 'The agent, or what it runs as, may not do this', refused.meta)
    return failureOutcome(services, error, signal)
  }
}
