import { callAs } from '#core/api/call.ts'
import { type FlatCall, flatSchema, flatten, type JsonObject, type Request, unflatten } from '#core/api/flatten.ts'
import { type Operation, type OperationResult, operations, toolNameOf } from '#core/api/operation.ts'
import { fieldsOf, requestPath } from '#core/api/parameters.ts'
import type { ToolContext } from '#core/api/tool-context.ts'
import { parse } from '#core/api/validate.ts'
import { AppError, type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { truncateBytes } from '#core/base/storable-text.ts'
import { invoke } from '#core/invoke/invoke.ts'
import { reserveResponseBytes, withNestedLimits } from './call-limits.ts'
import type { Callable, ToolCall } from './call-types.ts'
import type { ToolDefinition } from './model.ts'
import { forwardedContext } from './tokens.ts'

/** Platform tools: operations of the product itself, called in this process with the caller's permissions. */

const MAX_BODY_BYTES = 16 * 1024
/** Parameters that platform calls fix: they wait for the started work and never stream. */
const FIXED_PARAMETERS = ['wait', 'stream']

/** Whether an operation has a JSON request and response and takes a caller's credential. */
const isOffered = ({ gate, internal, receive, pass, answers, produces }: Operation): boolean =>
  gate !== 'public' && !internal && !receive && !pass && !(produces && answers[200] === null)

let registry: { of: readonly Operation[]; byAction: Map<string, Operation> } | undefined

/** Returns the operations that platform tools may offer, by action name. */
export function platformActions(): ReadonlyMap<string, Operation> {
  const all = operations.all()
  if (registry?.of !== all)
    registry = { of: all, byAction: new Map(all.filter(isOffered).map(each => [toolNameOf(each.id), each])) }
  return registry.byAction
}

/** Returns the problems of a definition's actions. */
export function actionProblems({ type, actions }: Pick<ToolDefinition, 'type' | 'actions'>, at: string): Problem[] {
  if (type !== 'platform') return []
  if (!actions || actions.length === 0)
    return [{ code: 'REQUIRED', path: `${at}actions`, message: 'must have at least one action for a platform tool' }]
  return actions.flatMap((action, index): Problem[] => {
    const path = `${at}actions[${index}]`
    if (platformActions().has(action))
      return actions.indexOf(action) < index ? [{ code: 'INVALID_VALUE', path, message: 'is a duplicate' }] : []
    const meant = platformActions().has(toolNameOf(action)) ? `; use ${toolNameOf(action)}` : ''
    return [{ code: 'INVALID_VALUE', path, message: `is not an operation that a tool can offer${meant}` }]
  })
}

/** Returns the action that presets fix, if any. */
export const pinnedAction = ({ preset_parameters }: Pick<ToolDefinition, 'preset_parameters'>): string | undefined =>
  typeof preset_parameters?.action === 'string' ? preset_parameters.action : undefined

/**
 * Returns the action of a call: the requested one, which must not differ from a preset one.
 * @throws VALIDATION_FAILED
 */
export function actionOf(tool: ToolDefinition, requested: string | null): string {
  const refuse = (message: string, code = 'INVALID_VALUE') => raiseInvalid({ code, path: 'action', message })
  const pinned = pinnedAction(tool)
  if (pinned !== undefined && requested !== null && requested !== pinned)
    return refuse(`must be ${pinned}, which the presets of the tool fix`)
  const action = requested ?? pinned
  if (action === undefined) return refuse(`is required for a tool of type ${tool.type}`, 'REQUIRED')
  return isExposed(tool, action) ? action : refuse('is not an action of the tool')
}

/**
 * Whether a tool offers an action: for a platform tool a listed one; for an mcp tool any action of the server that is
 * not excluded.
 */
export function isExposed({ type, actions, denied_actions }: ToolDefinition, action: string): boolean {
  if (type !== 'mcp') return actions?.includes(action) ?? false
  return (actions?.includes(action) ?? true) && !denied_actions?.includes(action)
}

/** Returns the arguments of an action without the action name. */
export function platformArguments(tool: ToolDefinition, input: Record<string, unknown>): Record<string, unknown> {
  if (pinnedAction(tool) === undefined) return input
  const { action: _pinned, ...rest } = input
  return rest
}

/**
 * Splits the arguments of a call into the parameters of an operation and validates them. Parameters from the tool context
 * replace arguments: a turn acts only on its own session.
 * @throws VALIDATION_FAILED
 */
function requestOf(operation: Operation, args: Record<string, unknown>, context: ToolContext): Request {
  const ofTurn = Object.entries(operation.contextParameters).filter(([, key]) => context[key] !== undefined)
  const input = { ...args, ...Object.fromEntries(ofTurn.map(([name, key]) => [name, context[key]])) }
  const { params, query, body } = unflatten(operation, input, { at: 'input', without: FIXED_PARAMETERS })
  const waits = [...(flatten(operation) as FlatCall).fields.values()].filter(({ field }) => field === 'wait')
  if (waits.some(each => each.in === 'query')) query.wait = 'true'
  if (operation.query) parse(operation.query, query, 'input')
  const requestBody = waits.some(each => each.in === 'body') ? { ...body, wait: true } : body
  if (operation.body && requestBody) parse(operation.body, requestBody, 'input')
  return { params, query, body: requestBody }
}

/** Raises VALIDATION_FAILED for arguments that do not match the operation of an action. */
export function checkArguments(
  tool: ToolDefinition,
  action: string,
  input: Record<string, unknown>,
  context: ToolContext,
): void {
  requestOf(operationOf(action), platformArguments(tool, input), context)
}

const operationOf = (action: string): Operation =>
  platformActions().get(action) ??
  raiseInvalid({ code: 'INVALID_VALUE', path: 'action', message: 'is not available any more' })

/** Whether an operation only reads, so that a repeated call has no further effect. */
export const isReadOnly = (action: string): boolean => {
  const operation = platformActions().get(action)
  return operation?.method === 'get' || operation?.reads === true
}

/** Whether an operation only gets, lists or searches, which guardrails may call for their context. */
export const readsOnly = (action: string): boolean =>
  /^(get|list|search)-/.test(action) && platformActions().get(action)?.reads === true

/** Returns the tool context that an operation accepts from the calling turn. */
const forwardedTo = (
  operation: Operation,
  tool: ToolDefinition,
  { turn, context }: ToolCall,
): Record<string, unknown> =>
  turn && 'tool_context' in fieldsOf(operation.body)
    ? { tool_context: forwardedContext(context, tool.context_keys) }
    : {}

/**
 * Calls an operation through a platform tool, with permissions, quotas and audit.
 * @throws VALIDATION_FAILED for arguments that do not match, UNAUTHORIZED without a caller, TOOL_HTTP_ERROR with the
 *   status of the operation
 */
export async function callOperation(
  services: Services,
  tool: Callable,
  action: string,
  input: Record<string, unknown>,
  call: ToolCall,
): Promise<unknown> {
  const operation = operationOf(action)
  if (call.reading && !readsOnly(action))
    raise('TOOL_CALL_NOT_SUPPORTED', {
      message: `${action} cannot be called by a guardrail, which may only read`,
      meta: { tool_id: tool.id },
    })
  const { limits, idempotencyKey, turn } = call
  const args = { ...platformArguments(tool, input), ...forwardedTo(operation, tool, call) }
  const requestBody = requestOf(operation, args, call.context)
  const caller = (await call.caller()) ?? raise('UNAUTHORIZED')
  const timeout = AbortSignal.timeout(Math.max(1, Math.ceil(limits.until - performance.now())))
  const key = idempotencyKey !== null && operation.method === 'post' ? `${idempotencyKey}.${action}` : undefined
  const invoked = callAs(caller, 'platform_tool', {
    ...requestBody,
    body: requestBody.body,
    signal: limits.signal ? AbortSignal.any([limits.signal, timeout]) : timeout,
    idempotencyKey: key?.slice(0, 255),
    origin: turn ?? undefined,
  })
  const started = performance.now()
  const answer = await withNestedLimits(limits, () => invoke(services, operation, invoked)).catch(refusedAs)
  const { status } = answer
  const ms = Math.round(performance.now() - started)
  services.log.info({ tool_id: tool.id, project_id: tool.project_id, action, status, ms }, 'tool called')
  if (answer instanceof AppError && status >= 500 && answer.cause)
    services.log.error(
      { err: answer.cause, tool_id: tool.id, project_id: tool.project_id, action },
      'platform operation failed',
    )
  if (!(answer instanceof AppError)) return outputOf(services, answer, call)
  const { code, message, meta } = answer
  // The author's missing permission is an error of the tool, not an answer of the operation.
  if (code === 'FORBIDDEN' && meta?.resource !== undefined) throw answer
  return raise('TOOL_HTTP_ERROR', {
    message: `${action} responded with ${status} ${code}`,
    meta: {
      tool_status_code: status,
      tool_response_body: truncateBytes(JSON.stringify({ error: { code, message, meta } }), MAX_BODY_BYTES),
      tool_url: requestPath(operation, requestBody.params),
      tool_method: operation.method.toUpperCase(),
    },
    cause: answer,
  })
}

/** Returns the error of an operation as its answer; rethrows any other error. */
function refusedAs(error: unknown): AppError {
  if (error instanceof AppError) return error
  throw error
}

function outputOf({ config }: Services, { body, text, stream }: OperationResult, { limits }: ToolCall): unknown {
  if (stream) {
    stream.destroy()
    return raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'input',
      message: 'requests a stream, which a tool cannot return',
    })
  }
  const answer = text ?? JSON.stringify(body ?? null)
  reserveResponseBytes(config, limits, answer.length)
  if (limits.room.bytes < 0)
    raiseInvalid({
      code: 'TOO_BIG',
      path: 'input',
      message: 'leads to responses that exceed the size limit of one call',
    })
  return parseExactJson(answer)
}

/** Cached by operation: building a schema takes a millisecond. */
const schemas = new WeakMap<Operation, JsonObject>()

/** Returns the schema without fixed parameters; parameters from the context of a turn are optional. */
function offeredSchema(operation: Operation): JsonObject {
  const schema = flatSchema(flatten(operation) as FlatCall, FIXED_PARAMETERS)
  const { required } = schema as { required?: string[] }
  const remaining = required?.filter(name => !(name in operation.contextParameters))
  return remaining ? { ...schema, required: remaining } : schema
}

/** Returns the JSON Schema of the arguments of an action. */
export function actionSchema(operation: Operation): JsonObject {
  const schema = schemas.get(operation) ?? offeredSchema(operation)
  schemas.set(operation, schema)
  return schema
}
