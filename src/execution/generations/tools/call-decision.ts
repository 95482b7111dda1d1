import { AppError, type RecordedFailure } from '../../../core/api/errors.ts'
import { storableValue } from '../../../core/api/storable-text.ts'
import { isDatabaseError, isTransient } from '../../../core/db/database-errors.ts'
import type { Caller } from '../../../core/iam/caller.ts'
import type { Services } from '../../../core/process/services.ts'
import { actingThrough, checkInput, guardrailView, judgedArguments, openCall, prepareCall } from '../../tools/call.ts'
import { type GateRequest, runOfCall, toolGate, type Verdict } from '../../tools/guardrail-gate.ts'
import { callFailed, failedCall, UNKNOWN } from '../journal/open-step.ts'
import type { GenerationRow, OpenStep, ToolCallOutcome, TurnData } from '../model.ts'
import { approvalDesk, type Proposal } from './approval-desk.ts'
import type { Justification, TurnTool } from './toolbox.ts'

const MAX_CALLS = 64

/** What the model wrote for the person who approves. */
type Justified = Partial<Record<Justification, unknown>>

/** What a decision on the calls of a step needs. */
export type CallDecisionInput = {
  services: Services
  generation: GenerationRow
  work: TurnData
  step: OpenStep
  /** Calls that were started, and what became of calls; of earlier attempts at first, kept up as calls are made. */
  started: Set<number>
  outcomes: Map<number, ToolCallOutcome>
  /** Tools of the step by the name that the model sees. */
  tools: ReadonlyMap<string, TurnTool>
  gate: GateRequest['agent']
  caller: () => Promise<Caller | null>
  signal: AbortSignal
}

/** A call that is to be made, with the arguments that the model gave. */
export type AllowedCall = { position: number; tool: TurnTool; args: Record<string, unknown> }
/** The outcome of a call that is not to be made; `judged` when the rules saw it. */
type Decided = { outcome: ToolCallOutcome; judged?: true } | { released: AllowedCall }

/** What is to become of a call, before it is made. */
export async function decideCall(deciding: CallDecisionInput, position: number): Promise<Decided> {
  const { services, step, started, tools } = deciding
  const { tool_name, args, args_error } = step.tool_calls[position]
  if (position >= MAX_CALLS) return { outcome: callFailed(`A step makes at most ${MAX_CALLS} calls`, 'too_many_calls') }
  const tool = tools.get(tool_name)
  if (started.has(position) && !tool?.repeatable) return { outcome: UNKNOWN, judged: true }
  if (!tool) return { outcome: failedCall('TOOL_NOT_FOUND', `There is no tool ${tool_name}`) }
  if (args_error !== undefined || typeof args !== 'object' || args === null || Array.isArray(args)) {
    const message = args_error ?? 'the arguments must be a JSON object'
    const problems = [{ code: 'INVALID_TYPE', path: 'input', message }]
    return { outcome: failedCall('VALIDATION_FAILED', message, { problems }) }
  }
  const { own, justification } = apart(args as Record<string, unknown>, tool)
  try {
    await check(services, tool, own, deciding.signal)
    const released: Decided = { released: { position, tool, args: own } }
    // It was released before it was started.
    return started.has(position)
      ? released
      : await judge(deciding, tool, judgedArguments(tool.callable, own), justification, released)
  } catch (error) {
    return { outcome: failureOutcome(services, error, deciding.signal) }
  }
}

/** The arguments, and what was written beside them for the person who approves; what is not of its type is null. */
function apart(args: Record<string, unknown>, { justified }: TurnTool) {
  const own = { ...args }
  const justification: Justified = {}
  for (const name of justified) {
    justification[name] = own[name]
    delete own[name]
  }
  return { own, justification }
}

/** Raises VALIDATION_FAILED for arguments that the call would be refused with. */
async function check(
  services: Services,
  { callable, action, checked: schema }: TurnTool,
  args: Record<string, unknown>,
  signal: AbortSignal,
): Promise<void> {
  const { limits } = openCall(services, { caller: async () => null, metering: null, signal })
  const { input } = await prepareCall(services, callable, { action, input: args, limits })
  if (schema) {
    const presets = callable.preset_parameters ?? {}
    const given = Object.fromEntries(Object.entries(input).filter(([name]) => !Object.hasOwn(presets, name)))
    await checkInput(services, { parameters: schema, project_id: callable.project_id }, given, signal)
  }
}

const textOr = (value: unknown): string | null => (typeof value === 'string' ? value : null)
const objectOr = (value: unknown): Record<string, unknown> | null =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null

/** Holds a call to the rules: what they do not release is the call's result. */
async function judge(
  { services, generation, work, gate, caller, signal }: CallDecisionInput,
  tool: TurnTool,
  args: Record<string, unknown>,
  justification: Justified,
  released: Decided,
): Promise<Decided> {
  const rules = toolGate.only()
  if (!rules) return released
  const action = tool.action ?? tool.callable.name
  const verdict = await rules.judge(services, {
    project_id: generation.project_id,
    agent: gate,
    tool: guardrailView(tool.callable),
    action,
    args,
    generation_id: generation.id,
    run: runOfCall(generation),
    guardrail_context: work.guardrail_context,
    caller: actingThrough(services, tool.callable, caller),
    signal,
  })
  if (verdict.decision === 'execute') return released
  if (verdict.decision !== 'route_to_approval')
    return { outcome: { result: { status: verdict.decision, reason: verdict.reason }, error: null }, judged: true }
  const proposal = proposalOf({ generation, work }, tool, { action, args, justification }, verdict)
  const filed = await approvalDesk.only()?.file(services, proposal)
  if (!filed) throw new Error('nothing files approvals')
  const { id: approval_id, expires_at } = filed
  return { outcome: { result: { status: 'pending_approval', approval_id, expires_at }, error: null }, judged: true }
}

/** What a person is asked about in place of a call. */
function proposalOf(
  { generation, work: { tool_context, guardrail_context } }: Pick<CallDecisionInput, 'generation' | 'work'>,
  { callable: { id, name, type } }: TurnTool,
  { action, args, justification }: Pick<Proposal, 'action' | 'args'> & { justification: Justified },
  { policy_version, expires_in, forbid_self_approval }: Extract<Verdict, { decision: 'route_to_approval' }>,
): Proposal {
  return {
    generation,
    tool: { id, name, type },
    action,
    args,
    reasoning: textOr(justification.approval_reasoning),
    evidence: objectOr(justification.approval_evidence),
    predicted_impact: textOr(justification.approval_predicted_impact),
    policy_version,
    expires_in,
    forbid_self_approval,
    tool_context,
    guardrail_context,
  }
}

/** What a model is told of a failure. */
export function failureOutcome({ log }: Services, error: unknown, signal: AbortSignal): ToolCallOutcome {
  if (signal.aborted) throw signal.reason
  if (isTransient(error)) throw error
  if (error instanceof AppError) return { result: null, error: storableValue(error.recorded()) as RecordedFailure }
  log.error({ err: error }, 'tool call')
  const message = isDatabaseError(error) ? 'The call could not be made' : String((error as Error)?.message ?? error)
  return failedCall('TOOL_CALL_FAILED', message)
}
