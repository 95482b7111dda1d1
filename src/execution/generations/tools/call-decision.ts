import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { isDatabaseError, isTransient } from '#core/db/database-errors.ts'
import type { Caller } from '#core/iam/caller.ts'
import {
  actingThrough,
  checkInput,
  guardrailView,
  judgedArguments,
  openCall,
  prepareCall,
} from '#execution/tools/call.ts'
import { type GateRequest, runOfCall, toolGate, type Verdict } from '#execution/tools/guardrail-gate.ts'
import { callFailed, failedCall, WITHHELD } from '../journal/step.ts'
import type { GenerationRow, OpenStep, ToolCallOutcome, TurnData } from '../model.ts'
import { approvalDesk, type Proposal } from './approval-desk.ts'
import type { Justification, TurnTool } from './toolbox.ts'

const MAX_CALLS = 64

/** Values of the justification fields written by the model. */
type JustificationValues = Partial<Record<Justification, unknown>>

/** Input for the decisions on the calls of a step. */
export type CallDecisionInput = {
  services: Services
  generation: GenerationRow
  data: TurnData
  step: OpenStep
  /** Started calls and outcomes of calls, initially of earlier attempts; updated as calls are made. */
  started: Set<number>
  outcomes: Map<number, ToolCallOutcome>
  /** Tools of the step by the name that the model uses. */
  tools: ReadonlyMap<string, TurnTool>
  gate: GateRequest['agent']
  caller: () => Promise<Caller | null>
  signal: AbortSignal
}

/** A call to be made, with the arguments of the model. */
export type AllowedCall = { position: number; tool: TurnTool; args: Record<string, unknown> }
/**
 * An allowed call, or the outcome of a call that is not made; `evaluated` if guardrails evaluated it, with the approval
 * that was filed in its place.
 */
type CallDecision =
  | { outcome: ToolCallOutcome; evaluated?: true; approval?: { approval_id: string } }
  | { allowed: AllowedCall }

/** Decides whether a call is made, from its arguments and the guardrails. */
export async function decideCall(input: CallDecisionInput, position: number): Promise<CallDecision> {
  const { services, step, started, tools } = input
  const { tool_name, args, args_error } = step.tool_calls[position]
  if (position >= MAX_CALLS)
    return { outcome: callFailed(`A step can make at most ${MAX_CALLS} calls`, 'too_many_calls') }
  const tool = tools.get(tool_name)
  if (started.has(position) && !tool?.repeatable) return { outcome: WITHHELD, evaluated: true }
  if (!tool) return { outcome: failedCall('TOOL_NOT_FOUND', `Tool ${tool_name} not found`) }
  if (args_error !== undefined || !isObject(args)) {
    const message = args_error ?? 'the arguments must be a JSON object'
    const problems = [{ code: 'INVALID_TYPE', path: 'input', message }]
    return { outcome: failedCall('VALIDATION_FAILED', message, { problems }) }
  }
  const { toolArgs, justification } = splitJustification(args, tool)
  try {
    await checkArguments(input, tool, toolArgs)
    const allowed: CallDecision = { allowed: { position, tool, args: toolArgs } }
    // A started call was allowed before it started.
    return started.has(position)
      ? allowed
      : await evaluateGuardrails(input, tool, judgedArguments(tool.callable, toolArgs), justification, allowed)
  } catch (error) {
    return { outcome: failureOutcome(services, error, input.signal) }
  }
}

/** Separates the justification fields from the arguments of the tool. */
function splitJustification(args: Record<string, unknown>, { justificationFields }: TurnTool) {
  const toolArgs = { ...args }
  const justification: JustificationValues = {}
  for (const name of justificationFields) {
    justification[name] = toolArgs[name]
    delete toolArgs[name]
  }
  return { toolArgs, justification }
}

/** @throws VALIDATION_FAILED for arguments that the call would refuse */
async function checkArguments(
  { services, data, signal }: CallDecisionInput,
  { callable, action, validationSchema: schema }: TurnTool,
  args: Record<string, unknown>,
): Promise<void> {
  const { limits } = openCall(services, { caller: async () => null, metering: null, signal })
  const context = data.tool_context ?? {}
  const { input } = await prepareCall(services, callable, { action, input: args, limits, context })
  if (schema) {
    const presets = callable.preset_parameters ?? {}
    const modelArgs = Object.fromEntries(Object.entries(input).filter(([name]) => !Object.hasOwn(presets, name)))
    const parameters = { parameters: schema, project_id: callable.project_id }
    await checkInput(services, parameters, modelArgs, { signal, isTheirs: true })
  }
}

const stringOrNull = (value: unknown): string | null => (typeof value === 'string' ? value : null)
const objectOrNull = (value: unknown): Record<string, unknown> | null => (isObject(value) ? value : null)

/** Evaluates the guardrails for a call: a verdict other than `execute` becomes the call's result. */
async function evaluateGuardrails(
  { services, generation, data, gate, caller, signal }: CallDecisionInput,
  tool: TurnTool,
  args: Record<string, unknown>,
  justification: JustificationValues,
  allowed: CallDecision,
): Promise<CallDecision> {
  const rules = toolGate.only()
  if (!rules) return allowed
  const action = tool.action ?? tool.callable.name
  const verdict = await rules.judge(services, {
    project_id: generation.project_id,
    agent: gate,
    tool: guardrailView(tool.callable),
    action,
    args,
    generation_id: generation.id,
    run: runOfCall(generation),
    guardrail_context: data.guardrail_context,
    caller: actingThrough(services, tool.callable, caller),
    signal,
  })
  if (verdict.decision === 'execute') return allowed
  if (verdict.decision !== 'route_to_approval')
    return { outcome: { result: { status: verdict.decision, reason: verdict.reason }, error: null }, evaluated: true }
  const proposal = proposalOf({ generation, data }, tool, { action, args, justification }, verdict)
  const filed = await approvalDesk.only()?.file(services, proposal)
  if (!filed) throw new Error('no approval desk is registered')
  const { id: approval_id, expires_at } = filed
  return {
    outcome: { result: { status: 'pending_approval', approval_id, expires_at }, error: null },
    evaluated: true,
    approval: { approval_id },
  }
}

/** Returns the proposal for an approval in place of a call. */
function proposalOf(
  { generation, data: { tool_context, guardrail_context } }: Pick<CallDecisionInput, 'generation' | 'data'>,
  { callable: { id, name, type }, label }: TurnTool,
  { action, args, justification }: Pick<Proposal, 'action' | 'args'> & { justification: JustificationValues },
  verdict: Extract<Verdict, { decision: 'route_to_approval' }>,
): Proposal {
  return {
    generation,
    tool: { id, name, type, label },
    action,
    args,
    reasoning: stringOrNull(justification.approval_reasoning),
    evidence: objectOrNull(justification.approval_evidence),
    predicted_impact: stringOrNull(justification.approval_predicted_impact),
    policy_version: verdict.policy_version,
    expires_in: verdict.expires_in,
    forbid_self_approval: verdict.forbid_self_approval,
    approver: verdict.approver,
    end_user_arguments: verdict.end_user_arguments,
    tool_context,
    guardrail_context,
  }
}

/** Returns an error as the outcome of a call. Aborts and transient database errors are raised. */
export function failureOutcome({ log }: Services, error: unknown, signal: AbortSignal): ToolCallOutcome {
  if (signal.aborted) throw signal.reason
  if (isTransient(error)) throw error
  if (error instanceof AppError) return { result: null, error: storableValue(error.recorded()) as RecordedFailure }
  log.error({ err: error }, 'tool call failed')
  const message = isDatabaseError(error) ? 'The call could not be made' : String((error as Error)?.message ?? error)
  return failedCall('TOOL_CALL_FAILED', message)
}
