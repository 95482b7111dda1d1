import { randomUUID } from 'node:crypto'
import { SlonikError } from 'slonik'
import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/text.ts'
import { isDatabaseLost } from '../../core/db/sql.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Origin } from '../../core/invoke/call.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import type { ModelAnswer } from '../providers/exchange.ts'
import { callTool, checkInput, gatedAs, openCall, prepareCall } from '../tools/call.ts'
import { type GateRequest, toolGate } from '../tools/gate.ts'
import type { Entry } from './journal-store.ts'
import { type CallOutcome, type GenerationRow, type OpenStep, type StepRow, totalsOf, type Work } from './model.ts'
import { approvalDesk, type Proposal } from './proposals.ts'
import type { Justification, TurnTool } from './toolbox.ts'

/** The calls of one step: decided one by one, made side by side, journalled before and after. */

const MAX_CALLS = 64
/** What an Idempotency-Key may hold. */
const CALL_ID = /^[\x21-\x7e]{1,128}$/

/** A step out of what the model answered; each call gets an id that no other call of the turn has. */
export function openStepOf(answer: ModelAnswer, n: number, startedAt: string, earlier: readonly StepRow[]): OpenStep {
  const taken = new Set(earlier.flatMap(step => step.tool_calls.map(({ id }) => id)))
  const unique = (id: string): string => {
    const own = CALL_ID.test(id) && !taken.has(id) ? id : `call_${randomUUID().replaceAll('-', '')}`
    taken.add(own)
    return own
  }
  return {
    n,
    text: answer.text,
    finish_reason: answer.finish_reason,
    model: answer.model,
    ai_provider_id: answer.ai_provider_id,
    tool_calls: answer.tool_calls.map(({ id, tool_name, args, args_error }) => ({
      id: unique(id),
      tool_name,
      args,
      ...(args_error ? { args_error } : {}),
    })),
    usage: answer.usage ? totalsOf(answer.usage) : null,
    started_at: startedAt,
  }
}

const failed = (code: string, message: string, meta?: Record<string, unknown>): CallOutcome => ({
  result: null,
  error: { code, message, ...(meta ? { meta } : {}) },
})
const callFailed = (message: string, reason: string) => failed('TOOL_CALL_FAILED', message, { reason })

const NOT_RUN = callFailed('The turn ended before the call was made', 'not_run')
const UNKNOWN = callFailed('Whether the call was made is not known', 'outcome_unknown')

/** The step as it settles. Calls without an outcome were not made, or it is not known what became of them. */
export const settledStep = (
  { tool_calls, ...step }: OpenStep,
  outcomes: ReadonlyMap<number, CallOutcome>,
  started: ReadonlySet<number> = new Set(),
): StepRow => ({
  ...step,
  tool_calls: tool_calls.map(({ id, tool_name, args }) => ({ id, tool_name, args })),
  tool_results: tool_calls.map(({ id, tool_name }, index) => ({
    tool_call_id: id,
    tool_name,
    ...(outcomes.get(index) ?? (started.has(index) ? UNKNOWN : NOT_RUN)),
  })),
  completed_at: new Date().toISOString(),
})

export type Calling = {
  services: Services
  generation: GenerationRow
  work: Work
  step: OpenStep
  /** Calls that were started, and what became of calls; of earlier attempts at first, kept up as calls are made. */
  started: Set<number>
  outcomes: Map<number, CallOutcome>
  /** Tools of the step by the name that the model sees. */
  tools: ReadonlyMap<string, TurnTool>
  gate: GateRequest['agent']
  turn: Origin
  caller: () => Promise<Caller | null>
  signal: AbortSignal
  /** Does work that waits for other messages. */
  aside: <T>(work: () => Promise<T>) => Promise<T>
  /** Whether the agent has a boundary. */
  bounded: boolean
  /** Keeps entries of the journal. Raises TurnLost. */
  write: (entries: Entry[], told: Told[]) => Promise<void>
  /** Told of each call that succeeded. */
  executed: (tool: TurnTool) => void
}

export type Released = { position: number; tool: TurnTool; args: Record<string, unknown> }
/** An event of the stream that is yet to be numbered. */
export type Told = { event: string; data: object }

/** The calls that are for the client to make, the names of those that were no mistake, and events to be told with what is written next. */
export type CallsMade = { pending: Released[]; called: ReadonlySet<string>; told: Told[] }

type Decided = { outcome: CallOutcome; judged?: true } | { released: Released }

/**
 * Makes the calls of a step that have no outcome yet. A failed call never fails the turn: the model sees the failure.
 * @throws the reason of the signal, TurnLost, what is thrown while the database is away
 */
export async function makeCalls(calling: Calling): Promise<CallsMade> {
  const { step, outcomes, signal } = calling
  const released: Released[] = []
  const called = new Set<string>()
  for (const [position, { tool_name }] of step.tool_calls.entries()) {
    if (outcomes.has(position)) {
      called.add(tool_name)
      continue
    }
    const decided = await decide(calling, position)
    signal.throwIfAborted()
    if ('released' in decided) released.push(decided.released)
    else outcomes.set(position, decided.outcome)
    if ('released' in decided || decided.judged) called.add(tool_name)
  }
  const isClients = ({ tool }: Released) => tool.callable.type === 'client'
  const told = await runAll(
    calling,
    released.filter(call => !isClients(call)),
  )
  return { pending: released.filter(isClients), called, told }
}

/** What is to become of a call, before it is made. */
async function decide(calling: Calling, position: number): Promise<Decided> {
  const { services, step, started, tools } = calling
  const { tool_name, args, args_error } = step.tool_calls[position]
  if (position >= MAX_CALLS) return { outcome: callFailed(`A step makes at most ${MAX_CALLS} calls`, 'too_many_calls') }
  const tool = tools.get(tool_name)
  if (started.has(position) && !tool?.repeatable) return { outcome: UNKNOWN, judged: true }
  if (!tool) return { outcome: failed('TOOL_NOT_FOUND', `There is no tool ${tool_name}`) }
  if (args_error !== undefined || typeof args !== 'object' || args === null || Array.isArray(args)) {
    const message = args_error ?? 'the arguments must be a JSON object'
    const problems = [{ code: 'INVALID_TYPE', path: 'input', message }]
    return { outcome: failed('VALIDATION_FAILED', message, { problems }) }
  }
  const { own, justification } = apart(args as Record<string, unknown>, tool)
  try {
    const input = await checked(services, tool, own, calling.signal)
    const released: Decided = { released: { position, tool, args: own } }
    // It was released before it was started.
    return started.has(position) ? released : await judge(calling, tool, input, justification, released)
  } catch (error) {
    return { outcome: outcomeOf(services, error, calling.signal) }
  }
}

/** The arguments, and what was written beside them for the person who approves; what is not of its type is null. */
function apart(args: Record<string, unknown>, { justified }: TurnTool) {
  const own = { ...args }
  const justification: Partial<Record<Justification, unknown>> = {}
  for (const name of justified) {
    justification[name] = own[name]
    delete own[name]
  }
  return { own, justification }
}

/** The arguments as they would be executed. Raises VALIDATION_FAILED. */
async function checked(
  services: Services,
  { callable, action, checked: schema }: TurnTool,
  args: Record<string, unknown>,
  signal: AbortSignal,
): Promise<Record<string, unknown>> {
  const { limits } = openCall(services, { caller: async () => null, signal })
  const { input } = await prepareCall(services, callable, { action, input: args, limits })
  if (schema) {
    const presets = callable.preset_parameters ?? {}
    const given = Object.fromEntries(Object.entries(input).filter(([name]) => !Object.hasOwn(presets, name)))
    await checkInput(services, { parameters: schema, project_id: callable.project_id }, given, signal)
  }
  return input
}

const textOr = (value: unknown): string | null => (typeof value === 'string' ? value : null)
const objectOr = (value: unknown): Record<string, unknown> | null =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null

/** Holds a call to the rules: what they do not release is the call's result. */
async function judge(
  { services, generation, work, gate, caller, signal }: Calling,
  tool: TurnTool,
  args: Record<string, unknown>,
  justification: Partial<Record<Justification, unknown>>,
  released: Decided,
): Promise<Decided> {
  const rules = toolGate.only()
  if (!rules) return released
  const action = tool.action ?? tool.callable.name
  const { guardrail_context } = work
  const verdict = await rules.judge(services, {
    project_id: generation.project_id,
    agent: gate,
    tool: gatedAs(tool.callable),
    action,
    args,
    generation_id: generation.id,
    guardrail_context,
    caller,
    signal,
  })
  if (verdict.decision === 'execute') return released
  if (verdict.decision !== 'route_to_approval')
    return { outcome: { result: { status: verdict.decision, reason: verdict.reason }, error: null }, judged: true }
  const { id, name, type } = tool.callable
  const proposal: Proposal = {
    generation,
    tool: { id, name, type },
    action,
    args,
    reasoning: textOr(justification.approval_reasoning),
    evidence: objectOr(justification.approval_evidence),
    predicted_impact: textOr(justification.approval_predicted_impact),
    policy_version: verdict.policy_version,
    expires_in: verdict.expires_in,
    forbid_self_approval: verdict.forbid_self_approval,
    tool_context: work.tool_context,
    guardrail_context,
  }
  const filed = await approvalDesk.only()?.file(services, proposal)
  if (!filed) throw new Error('nothing files approvals')
  const { id: approval_id, expires_at } = filed
  return { outcome: { result: { status: 'pending_approval', approval_id, expires_at }, error: null }, judged: true }
}

/** What a model is told of a failure. */
function outcomeOf({ log }: Services, error: unknown, signal: AbortSignal): CallOutcome {
  if (signal.aborted) throw signal.reason
  if (isDatabaseLost(error)) throw error
  if (error instanceof AppError) return { result: null, error: storableValue(error.recorded()) as RecordedFailure }
  log.error({ err: error }, 'tool call')
  const message =
    error instanceof SlonikError ? 'The call could not be made' : String((error as Error)?.message ?? error)
  return failed('TOOL_CALL_FAILED', message)
}

/**
 * Makes calls, a number of them at once: each is noted as started before it is made, and its outcome behind it, but for
 * the last, which is written with what follows. Returns what is to be told with that.
 */
async function runAll(calling: Calling, calls: Released[]): Promise<Told[]> {
  const { services, step, signal, started, outcomes, write } = calling
  const waiting = [...calls]
  const running = new Map<number, Promise<void>>()
  let unwritten: Entry[] = []
  let told: Told[] = []
  let fatal: unknown = null
  const nameOf = (position: number) => {
    const { id: tool_call_id, tool_name } = step.tool_calls[position]
    return { tool_call_id, tool_name }
  }
  while (waiting.length > 0 || running.size > 0) {
    const starting = waiting.splice(0, services.config.GENERATION_TOOL_CONCURRENCY - running.size)
    const starts = starting.map(({ position }): Entry => ({ n: step.n, position: position + 1, value: null }))
    const said = starting.map(({ position }): Told => ({ event: 'tool_call', data: nameOf(position) }))
    await write([...unwritten, ...starts], [...told, ...said])
    unwritten = []
    told = []
    for (const { position } of starting) started.add(position)
    if (starting.length > 0) await fault(services, 'before_tool')
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
    await fault(services, 'after_tool')
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

async function run(calling: Calling, { position, tool, args }: Released): Promise<CallOutcome> {
  const { services, generation, work, step, turn, caller, signal, aside } = calling
  const call = openCall(services, {
    action: tool.action,
    input: args,
    caller,
    context: work.tool_context ?? {},
    idempotencyKey: `${generation.id}:${step.tool_calls[position].id}`,
    turn,
    judged: true,
    signal,
  })
  try {
    const made = () => callTool(services, tool.callable, call)
    const result = storableValue((await (tool.callable.type === 'platform' ? aside(made) : made())) ?? null)
    if (Buffer.byteLength(JSON.stringify(result)) > services.config.GENERATION_TOOL_RESULT_MAX_BYTES)
      return callFailed('The result is larger than a turn can keep', 'result_too_large')
    calling.executed(tool)
    return { result, error: null }
  } catch (error) {
    const refused = error instanceof AppError && error.cause instanceof AppError ? error.cause : null
    if (calling.bounded && refused?.code === 'FORBIDDEN')
      return failed('FORBIDDEN', 'The agent or whom it runs as may not do this', refused.meta)
    return outcomeOf(services, error, signal)
  }
}
