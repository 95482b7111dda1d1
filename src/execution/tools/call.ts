import { AppError, type ErrorCode, raise, raiseInvalid } from '../../core/api/errors.ts'
import { mergeContext, type ToolContext } from '../../core/api/tool-context.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import { type EvaluationBudget, ExpressionError, evaluate, readPath } from '../../core/expressions/evaluate.ts'
import { pathsOf } from '../../core/expressions/references.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Origin } from '../../core/invoke/call.ts'
import { SchemaError, schemaChecks } from '../../core/json-schema/checks.ts'
import { wireProblems } from '../../core/json-schema/problems.ts'
import type { Services } from '../../core/process/services.ts'
import { effectiveCaller } from '../../identity/principals.ts'
import { consumeShareCall } from '../shares/consume-cap.ts'
import { MAX_CALLS, toolCallLimits, withCallSlot, withNestedLimits } from './call-limits.ts'
import { type Callable, type CallMetering, callingProject, type ToolCall } from './call-types.ts'
import { parametersSchema } from './check-definition.ts'
import { type GateRequest, runOfCall, toolGate } from './guardrail-gate.ts'
import { callHttp } from './http.ts'
import { callMcp } from './mcp.ts'
import { meterToolCall } from './metering.ts'
import { callPipeline } from './pipeline.ts'
import { actionOf, callOperation, checkArguments, isReadOnly } from './platform.ts'

/** A call, with its limits. */
export const openCall = (
  { config }: Pick<Services, 'config'>,
  given: {
    action?: string | null
    input?: Record<string, unknown> | null
    caller: () => Promise<Caller | null>
    context?: ToolContext
    idempotencyKey?: string | null
    turn?: Origin
    judged?: ToolCall['judged']
    reading?: boolean
    begin?: ToolCall['begin']
    metering: CallMetering | null
    timeoutMs?: number
    signal?: AbortSignal
  },
): ToolCall => ({
  action: given.action ?? null,
  input: given.input ?? {},
  caller: given.caller,
  context: given.context ?? {},
  idempotencyKey: given.idempotencyKey ?? null,
  turn: given.turn ?? null,
  judged: given.judged ?? false,
  begin: given.begin ?? null,
  reading: given.reading ?? false,
  metering: given.metering,
  limits: toolCallLimits(config, given),
})

/**
 * Calls a tool: presets over the arguments, `parameters`, the guardrails of the project and the tool, the cap of a share
 * that it goes through, the call itself, `output_mapping`. Returns JSON.
 * @throws TOOL_CALL_NOT_SUPPORTED, TOOL_DISPATCH_FAILED, PIPELINE_DEPTH_EXCEEDED, VALIDATION_FAILED and what the type of the tool raises; SERVICE_NOT_READY while
 *   schemas cannot be checked; SHARE_CAP_EXCEEDED
 */
export function callTool(services: Services, tool: Callable, call: ToolCall): Promise<unknown> {
  const work = () => executeCall(services, tool, call)
  // Operations of the platform may wait for turns whose calls need room themselves.
  const bounded = call.limits.depth === 0 && tool.type !== 'platform'
  return bounded ? withCallSlot(services, callingProject(tool), call.limits, work) : work()
}

async function executeCall(services: Services, tool: Callable, given: ToolCall): Promise<unknown> {
  const call = { ...given, caller: actingThrough(services, tool, given.caller) }
  if (tool.type === 'client') return raise('TOOL_CALL_NOT_SUPPORTED', { meta: { tool_id: tool.id } })
  const { limits } = call
  const most = services.config.PIPELINE_MAX_DEPTH
  if (limits.depth > most) tooDeep(`Calls of tools nest at most ${most} deep`)
  if (--limits.room.calls < 0) tooDeep(`One call leads to at most ${MAX_CALLS} calls`)
  const { action, input } = await prepareCall(services, tool, call)
  const patiently = <T>(work: () => Promise<T>) =>
    retryWhileUnavailable(work, {
      signal: limits.signal,
      withinMs: Math.min(DATABASE_PATIENCE_MS, limits.until - performance.now()),
    })
  if (!call.judged) await patiently(() => requireExecute(services, tool, action ?? tool.name, call))
  await patiently(() => consumeShareCall(services, tool.consumer))
  if (!isRepeatable(tool, action)) await call.begin?.()
  const make = () => dispatch(services, tool, action, input, sharedToolCall(tool, call))
  const output = await (readsBefore(tool, action) ? patiently(make) : make()).catch(error => {
    meterToolCall(services, tool, action, call, { input, output: null })
    throw tool.consumer ? withoutDefinition(error) : error
  })
  meterToolCall(services, tool, action, call, { input, output })
  return tool.output_mapping ? mapOutput(services, tool, { output, input }, limits.room.expressions) : output
}

/** Whether a call that may have been made is made again: its author says that it can be, or it only reads. */
const isRepeatable = ({ type, idempotent }: Callable, action: string | null): boolean =>
  idempotent || (type === 'platform' && isReadOnly(action as string))

/** How long a call waits for a database that is unavailable, so that its turn or its node need not ask whether it was made. */
const DATABASE_PATIENCE_MS = 30_000

/** Whether a call that an error of the database has failed had no effect: it reads there before it makes its request. */
const readsBefore = ({ type }: Callable, action: string | null): boolean =>
  type === 'http' || type === 'mcp' || (type === 'platform' && isReadOnly(action as string))

/**
 * As whom a tool acts that somebody calls: bound to the project in whose name it is called, whatever the credential of the
 * caller, and within the rights of the tool's author. Everything that belongs to the call, its guardrails and steps included,
 * acts so.
 */
export function actingThrough(services: Services, tool: Callable, caller: ToolCall['caller']): ToolCall['caller'] {
  // What other projects share does nothing on the platform: its author does not count.
  const { id, author, consumer } = tool
  const definitions = id === null || consumer ? [] : [{ id, author }]
  let acting: Promise<Caller | null> | undefined
  return () => {
    acting ??= caller().then(by => by && effectiveCaller(services, by, callingProject(tool), ...definitions))
    return acting
  }
}

/**
 * What will be called, with which arguments: presets over those given, checked.
 * @throws VALIDATION_FAILED; SERVICE_NOT_READY while schemas cannot be checked
 */
export async function prepareCall(
  services: Services,
  tool: Callable,
  call: Pick<ToolCall, 'action' | 'input' | 'limits'>,
): Promise<{ action: string | null; input: Record<string, unknown> }> {
  const action = tool.type === 'platform' || tool.type === 'mcp' ? actionOf(tool, call.action) : null
  const input = { ...call.input, ...tool.preset_parameters }
  await checkInput(services, tool, input, call.limits.signal)
  if (action !== null && tool.type === 'platform') checkArguments(tool, action, input)
  return { action, input }
}

/**
 * A call as it reaches a tool of another project, or asks what that offers. It is told who calls; but what it is made of,
 * which its project may change at any time, does not get to act on the platform with the rights of who calls.
 */
export function sharedToolCall({ consumer }: Callable, call: ToolCall): ToolCall {
  if (!consumer) return call
  return {
    ...call,
    context: mergeContext(call.context, { calling_project_id: consumer.project_id }),
    caller: async () =>
      raise('TOOL_CALL_NOT_SUPPORTED', { message: 'Operations of the platform are not called through a share' }),
  }
}

/** What failures tell of how a tool is made and of what its presets are. */
const OF_DEFINITION = ['tool_url', 'tool_address', 'upstream_body']

/** A failure as another project is told it. */
function withoutDefinition(error: unknown): unknown {
  if (!(error instanceof AppError) || !OF_DEFINITION.some(name => error.meta && name in error.meta)) return error
  const hidden = Object.fromEntries(OF_DEFINITION.filter(name => name in (error.meta ?? {})).map(name => [name, null]))
  return new AppError(error.code as ErrorCode, {
    message: error.code === 'TOOL_EGRESS_BLOCKED' ? 'The address of the tool may not be called' : error.message,
    meta: { ...error.meta, ...hidden },
    cause: error,
  })
}

const tooDeep = (message: string): never => raise('PIPELINE_DEPTH_EXCEEDED', { message })

function dispatch(
  services: Services,
  tool: Callable,
  action: string | null,
  input: Record<string, unknown>,
  call: ToolCall,
): Promise<unknown> {
  if (tool.type === 'pipeline') return callPipeline(services, tool, input, call, callTool)
  if (tool.type === 'platform') return callOperation(services, tool, action as string, input, call)
  if (tool.type === 'mcp') return callMcp(services, tool, action as string, input, call)
  return callHttp(services, tool, input, call)
}

/**
 * The arguments of a call as guardrails judge them and people see them: with presets over them, but for a tool of another
 * project, whose presets are its own.
 */
export const judgedArguments = (
  { consumer, preset_parameters }: Pick<Callable, 'consumer' | 'preset_parameters'>,
  given: Record<string, unknown>,
): Record<string, unknown> => (consumer ? given : { ...given, ...preset_parameters })

/** A tool as rules know it. Through a share those of the project that calls count alone. */
export const guardrailView = ({ id, name, guardrail_ids, consumer }: Callable): GateRequest['tool'] => ({
  id,
  name,
  guardrail_ids: consumer ? null : guardrail_ids,
})

/** Raises TOOL_DISPATCH_FAILED unless the guardrails let a call pass: where nothing can wait, nobody is asked. */
async function requireExecute(
  services: Services,
  tool: Callable,
  action: string,
  { input, caller, limits, metering }: ToolCall,
): Promise<void> {
  const request: GateRequest = {
    project_id: callingProject(tool),
    agent: null,
    tool: guardrailView(tool),
    action,
    args: judgedArguments(tool, input),
    generation_id: null,
    run: metering && runOfCall(metering),
    guardrail_context: null,
    caller,
    signal: limits.signal,
  }
  // What the guardrails call is part of this call.
  const verdict = await withNestedLimits(limits, async () => toolGate.only()?.judge(services, request))
  if (!verdict || verdict.decision === 'execute') return
  raise('TOOL_DISPATCH_FAILED', {
    message: 'reason' in verdict ? verdict.reason : 'The call needs an approval, which cannot be given here',
    meta: { tool_id: tool.id, outcome: verdict.decision },
  })
}

/** Raises VALIDATION_FAILED where the arguments break the tool's schema. */
export async function checkInput(
  services: Services,
  { parameters, project_id }: Pick<Callable, 'parameters' | 'project_id'>,
  input: Record<string, unknown>,
  signal?: AbortSignal,
): Promise<void> {
  if (!parameters) return
  try {
    const schema = parametersSchema(project_id, parameters)
    const [problems] = await schemaChecks(services).problems(schema, [input], { signal })
    if (problems.length > 0) raiseInvalid(wireProblems(problems, 'input'))
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    raiseInvalid({ code: 'INVALID_VALUE', path: 'parameters', message: error.message })
  }
}

/** The result of a call by the mapping of its tool. Raises VALIDATION_FAILED for one that costs too much. */
export function mapOutput(
  { log }: Services,
  { id, output_mapping }: Callable,
  root: { output: unknown; input: Record<string, unknown> },
  spent: EvaluationBudget,
): unknown {
  const missing = pathsOf(output_mapping).filter(path => readPath(root, path) === null)
  if (missing.length > 0)
    log.info({ tool_id: id, missing: missing.slice(0, 20) }, 'output mapping reads what is not there')
  try {
    return evaluate(output_mapping, root, spent)
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return raiseInvalid({ code: 'TOO_BIG', path: 'output_mapping', message: error.message })
  }
}
