import type { Origin } from '#core/api/call.ts'
import { mergeContext, type ToolContext } from '#core/api/tool-context.ts'
import { AppError, type ErrorCode, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { type EvaluationBudget, ExpressionError, readPath } from '#core/expressions/evaluate.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import { pathsOf } from '#core/expressions/references.ts'
import type { Caller } from '#core/iam/caller.ts'
import { lenientSchema, SchemaError, schemaChecks } from '#core/json-schema/checks.ts'
import { wireProblems } from '#core/json-schema/problems.ts'
import { effectiveCaller } from '#identity/principals/principals.ts'
import { consumeShareCall } from '../grants/consume-cap.ts'
import { MAX_CALLS, toolCallLimits, withCallSlot, withNestedLimits } from './call-limits.ts'
import { type Callable, type CallMetering, callingProject, type ToolCall } from './call-types.ts'
import { type GateRequest, runOfCall, toolGate } from './guardrail-gate.ts'
import { callHttp } from './http.ts'
import { callMcp } from './mcp.ts'
import { meterToolCall } from './metering.ts'
import { callPipeline } from './pipeline.ts'
import { actionOf, callOperation, checkArguments, isReadOnly } from './platform.ts'

/** Returns a call with its limits. */
export const openCall = (
  { config }: Pick<Services, 'config'>,
  options: {
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
  action: options.action ?? null,
  input: options.input ?? {},
  caller: options.caller,
  context: options.context ?? {},
  idempotencyKey: options.idempotencyKey ?? null,
  turn: options.turn ?? null,
  judged: options.judged ?? false,
  begin: options.begin ?? null,
  reading: options.reading ?? false,
  metering: options.metering,
  limits: toolCallLimits(config, options),
})

/**
 * Calls a tool and returns its result as JSON: applies presets, validates `parameters`, evaluates the guardrails of
 * project and tool, consumes the cap of a share, makes the call, and applies `output_mapping`.
 * @throws TOOL_CALL_NOT_SUPPORTED, TOOL_DISPATCH_FAILED, PIPELINE_DEPTH_EXCEEDED, VALIDATION_FAILED and the errors of
 *   the tool's type; SERVICE_NOT_READY while schemas cannot be checked; SHARE_CAP_EXCEEDED
 */
export function callTool(services: Services, tool: Callable, call: ToolCall): Promise<unknown> {
  const work = () => executeCall(services, tool, call)
  // No slot for platform operations: they may wait for turns whose calls need slots themselves.
  const bounded = call.limits.depth === 0 && tool.type !== 'platform'
  return bounded ? withCallSlot(services, callingProject(tool), call.limits, work) : work()
}

async function executeCall(services: Services, tool: Callable, incoming: ToolCall): Promise<unknown> {
  const call = { ...incoming, caller: actingThrough(services, tool, incoming.caller) }
  if (tool.type === 'client') return raise('TOOL_CALL_NOT_SUPPORTED', { meta: { tool_id: tool.id } })
  const { limits } = call
  const maxDepth = services.config.PIPELINE_MAX_DEPTH
  if (limits.depth > maxDepth) raiseTooDeep(`Tool calls are nested more than ${maxDepth} levels deep`)
  if (--limits.room.calls < 0) raiseTooDeep(`The call leads to more than ${MAX_CALLS} calls`)
  const { action, input } = await prepareCall(services, tool, call)
  const retryDuringOutage = <T>(work: () => Promise<T>) =>
    retryWhileUnavailable(work, {
      signal: limits.signal,
      withinMs: Math.min(OUTAGE_RETRY_MS, limits.until - performance.now()),
    })
  if (!call.judged) await retryDuringOutage(() => requireExecute(services, tool, action ?? tool.name, call))
  await retryDuringOutage(() => consumeShareCall(services, tool.consumer))
  if (!isRepeatable(tool, action)) await call.begin?.()
  const makeCall = () => dispatch(services, tool, action, input, sharedToolCall(tool, call))
  const output = await (readsBefore(tool, action) ? retryDuringOutage(makeCall) : makeCall()).catch(error => {
    meterToolCall(services, tool, action, call, { input, output: null })
    throw tool.consumer ? withoutDefinition(error) : error
  })
  meterToolCall(services, tool, action, call, { input, output })
  if (!tool.output_mapping) return output
  return mapOutput(services, tool, { output, input }, limits.room.expressions).catch(raiseUnmapped)
}

/** Raises the error of an output mapping after its call; SERVICE_NOT_READY would repeat the call. */
function raiseUnmapped(error: unknown): never {
  if (!(error instanceof AppError) || error.code !== 'SERVICE_NOT_READY') throw error
  return raiseInvalid({ code: 'TOO_BIG', path: 'output_mapping', message: `cannot be evaluated: ${error.message}` })
}

/** Whether a call that may have been made can be repeated: the tool is idempotent or the operation only reads. */
const isRepeatable = ({ type, idempotent }: Callable, action: string | null): boolean =>
  idempotent || (type === 'platform' && isReadOnly(action as string))

/**
 * Time for which a call retries an unavailable database, so that its turn or node need not determine whether it was
 * made.
 */
const OUTAGE_RETRY_MS = 30_000

/**
 * Whether a call that failed with a database error had no effect, because it uses the database only before its request.
 */
const readsBefore = ({ type }: Callable, action: string | null): boolean =>
  type === 'http' || type === 'mcp' || (type === 'platform' && isReadOnly(action as string))

/**
 * Returns the caller that a tool acts as: bound to the calling project, whatever the caller's credential, and limited
 * by the permissions of the tool's author. Applies to everything within the call, including guardrails and steps.
 */
export function actingThrough(services: Services, tool: Callable, caller: ToolCall['caller']): ToolCall['caller'] {
  // A shared tool performs no platform operations, so its author does not matter.
  const { id, author, consumer } = tool
  const definitions = id === null || consumer ? [] : [{ id, author }]
  let acting: Promise<Caller | null> | undefined
  return () => {
    acting ??= caller().then(by => by && effectiveCaller(services, by, callingProject(tool), ...definitions))
    return acting
  }
}

/**
 * Returns the action and the arguments of a call, with presets applied and validated.
 * @throws VALIDATION_FAILED; SERVICE_NOT_READY while schemas cannot be checked
 */
export async function prepareCall(
  services: Services,
  tool: Callable,
  call: Pick<ToolCall, 'action' | 'input' | 'limits' | 'context'>,
): Promise<{ action: string | null; input: Record<string, unknown> }> {
  const action = tool.type === 'platform' || tool.type === 'mcp' ? actionOf(tool, call.action) : null
  const input = { ...call.input, ...tool.preset_parameters }
  await checkInput(services, tool, input, call.limits)
  if (action !== null && tool.type === 'platform') checkArguments(tool, action, input, call.context)
  return { action, input }
}

/**
 * Restricts a call of another project's tool. The tool receives the calling project's id, but cannot perform platform
 * operations with the caller's permissions, since its project may change it at any time.
 */
export function sharedToolCall({ consumer }: Callable, call: ToolCall): ToolCall {
  if (!consumer) return call
  return {
    ...call,
    context: mergeContext(call.context, { calling_project_id: consumer.project_id }),
    caller: async () =>
      raise('TOOL_CALL_NOT_SUPPORTED', { message: 'Platform operations cannot be called through a share' }),
  }
}

/** Metadata fields of failures that reveal a tool's definition or its presets. */
const DEFINITION_FIELDS = ['tool_url', 'tool_address', 'upstream_body']

/** Returns a failure without fields that another project must not see. */
function withoutDefinition(error: unknown): unknown {
  if (!(error instanceof AppError) || !DEFINITION_FIELDS.some(name => error.meta && name in error.meta)) return error
  const hidden = Object.fromEntries(
    DEFINITION_FIELDS.filter(name => name in (error.meta ?? {})).map(name => [name, null]),
  )
  return new AppError(error.code as ErrorCode, {
    message: error.code === 'TOOL_EGRESS_BLOCKED' ? 'Address of the tool is blocked by the egress rule' : error.message,
    meta: { ...error.meta, ...hidden },
    cause: error,
  })
}

const raiseTooDeep = (message: string): never => raise('PIPELINE_DEPTH_EXCEEDED', { message })

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
 * Returns the arguments of a call for guardrails and people: with presets, except for a tool of another project, whose
 * presets are private.
 */
export const judgedArguments = (
  { consumer, preset_parameters }: Pick<Callable, 'consumer' | 'preset_parameters'>,
  input: Record<string, unknown>,
): Record<string, unknown> => (consumer ? input : { ...input, ...preset_parameters })

/** Returns a tool as guardrails see it. For a shared tool only guardrails of the calling project apply. */
export const guardrailView = ({ id, name, guardrail_ids, consumer }: Callable): GateRequest['tool'] => ({
  id,
  name,
  guardrail_ids: consumer ? null : guardrail_ids,
})

/**
 * Raises TOOL_DISPATCH_FAILED unless the guardrails allow a call. A required approval is refused, because
 * this call cannot wait.
 */
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
  // Calls by guardrails count against the limits of this call.
  const verdict = await withNestedLimits(limits, async () => toolGate.only()?.judge(services, request))
  if (!verdict || verdict.decision === 'execute') return
  raise('TOOL_DISPATCH_FAILED', {
    message: 'reason' in verdict ? verdict.reason : 'The call requires an approval, which is not possible here',
    meta: { tool_id: tool.id, outcome: verdict.decision },
  })
}

/**
 * Raises VALIDATION_FAILED for arguments that violate the tool's schema.
 * @param isTheirs whether the schema is a server's own, which is not checked if it cannot be compiled here
 */
export async function checkInput(
  services: Services,
  { parameters, project_id }: Pick<Callable, 'parameters' | 'project_id'>,
  input: Record<string, unknown>,
  { signal, isTheirs = false }: { signal?: AbortSignal; isTheirs?: boolean } = {},
): Promise<void> {
  if (!parameters) return
  try {
    const schema = lenientSchema(project_id, parameters)
    const [problems] = await schemaChecks(services).problems(schema, [input], { signal })
    if (problems.length > 0) raiseInvalid(wireProblems(problems, 'input'))
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    if (!isTheirs) raiseInvalid({ code: 'INVALID_VALUE', path: 'parameters', message: error.message })
  }
}

/**
 * Returns the result of a call after the tool's output mapping.
 * @throws VALIDATION_FAILED if evaluation exceeds its budget, SERVICE_NOT_READY if no thread is free
 */
export async function mapOutput(
  services: Services,
  tool: Callable,
  root: { output: unknown; input: Record<string, unknown> },
  spent: EvaluationBudget,
): Promise<unknown> {
  const { id, output_mapping } = tool
  const missing = pathsOf(output_mapping).filter(path => readPath(root, path) === null)
  if (missing.length > 0)
    services.log.info({ tool_id: id, missing: missing.slice(0, 20) }, 'output mapping read missing values')
  try {
    return await evaluate(services, callingProject(tool), output_mapping, root, { spent })
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return raiseInvalid({ code: 'TOO_BIG', path: 'output_mapping', message: error.message })
  }
}
