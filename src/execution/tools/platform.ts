import { AppError, type Problem, raise, raiseInvalid } from '../../core/api/errors.ts'
import { type FlatCall, flatSchema, flatten, type JsonObject, type Request, unflatten } from '../../core/api/flatten.ts'
import { type Operation, type OperationResult, operations } from '../../core/api/operation.ts'
import { fieldsOf, requestPath } from '../../core/api/parameters.ts'
import { truncateBytes } from '../../core/api/storable-text.ts'
import { parse } from '../../core/api/validate.ts'
import { callAs } from '../../core/invoke/call.ts'
import { invoke } from '../../core/invoke/invoke.ts'
import type { Services } from '../../core/process/services.ts'
import { reserveResponseBytes, withNestedLimits } from './call-limits.ts'
import type { Callable, ToolCall } from './call-types.ts'
import type { ToolDefinition } from './model.ts'
import { forwardedContext } from './tokens.ts'

/** Platform tools: operations of the product itself, called in this process with the rights of whoever calls the tool. */

const SHOWN_BYTES = 16 * 1024
/** A platform call always waits for what it started, and never streams. */
const FIXED = ['wait', 'stream']

/** Operations whose answer is JSON, that read a JSON body, and that take the credential of a caller. */
const isOffered = ({ gate, internal, receive, pass, answers, produces }: Operation): boolean =>
  gate !== 'public' && !internal && !receive && !pass && !(produces && answers[200] === null)

const actionName = (id: string): string => id.replace(/[A-Z]/g, letter => `-${letter.toLowerCase()}`).replace(/^-/, '')

let registry: { of: readonly Operation[]; byAction: Map<string, Operation> } | undefined

/** The operations that platform tools may offer, by their names as actions. */
export function platformActions(): ReadonlyMap<string, Operation> {
  const all = operations.all()
  if (registry?.of !== all)
    registry = { of: all, byAction: new Map(all.filter(isOffered).map(each => [actionName(each.id), each])) }
  return registry.byAction
}

/** What is wrong with the actions of a definition. */
export function actionProblems({ type, actions }: Pick<ToolDefinition, 'type' | 'actions'>, at: string): Problem[] {
  if (type !== 'platform') return []
  if (!actions || actions.length === 0)
    return [{ code: 'REQUIRED', path: `${at}actions`, message: 'a platform tool names at least one' }]
  return actions.flatMap((action, index): Problem[] => {
    const path = `${at}actions[${index}]`
    if (platformActions().has(action))
      return actions.indexOf(action) < index ? [{ code: 'INVALID_VALUE', path, message: 'is there twice' }] : []
    const meant = platformActions().has(actionName(action)) ? `; did you mean ${actionName(action)}?` : ''
    return [{ code: 'INVALID_VALUE', path, message: `is no operation that a tool can offer${meant}` }]
  })
}

/** The action that presets pin, whatever a call names. */
export const pinnedAction = ({ preset_parameters }: Pick<ToolDefinition, 'preset_parameters'>): string | undefined =>
  typeof preset_parameters?.action === 'string' ? preset_parameters.action : undefined

/**
 * The action of a call: what it names, or what the presets pin, which nothing else may be named beside.
 * @throws VALIDATION_FAILED
 */
export function actionOf(tool: ToolDefinition, given: string | null): string {
  const wrong = (message: string, code = 'INVALID_VALUE') => raiseInvalid({ code, path: 'action', message })
  const pinned = pinnedAction(tool)
  if (pinned !== undefined && given !== null && given !== pinned) return wrong(`must be ${pinned}, which the tool pins`)
  const action = given ?? pinned
  if (action === undefined) return wrong(`is required for a tool of type ${tool.type}`, 'REQUIRED')
  return isExposed(tool, action) ? action : wrong('is none of the actions of the tool')
}

/** Whether a tool offers an action: what a platform tool lists; of an mcp tool all of the server's, unless it says less. */
export function isExposed({ type, actions, denied_actions }: ToolDefinition, action: string): boolean {
  if (type !== 'mcp') return actions?.includes(action) ?? false
  return (actions?.includes(action) ?? true) && !denied_actions?.includes(action)
}

/** The arguments of an action, without what says which one it is. */
export function platformArguments(tool: ToolDefinition, input: Record<string, unknown>): Record<string, unknown> {
  if (pinnedAction(tool) === undefined) return input
  const { action: _pinned, ...rest } = input
  return rest
}

/**
 * Takes the arguments of a call apart into the parameters of an operation, validated.
 * @throws VALIDATION_FAILED
 */
function requestOf(operation: Operation, input: Record<string, unknown>): Request {
  const { params, query, body } = unflatten(operation, input, { at: 'input', without: FIXED })
  const waits = [...(flatten(operation) as FlatCall).fields.values()].filter(({ field }) => field === 'wait')
  if (waits.some(each => each.in === 'query')) query.wait = 'true'
  if (operation.query) parse(operation.query, query, 'input')
  const asked = waits.some(each => each.in === 'body') ? { ...body, wait: true } : body
  if (operation.body && asked) parse(operation.body, asked, 'input')
  return { params, query, body: asked }
}

/** Raises VALIDATION_FAILED for arguments that do not fit the operation of an action. */
export function checkArguments(tool: ToolDefinition, action: string, input: Record<string, unknown>): void {
  requestOf(operationOf(action), platformArguments(tool, input))
}

const operationOf = (action: string): Operation =>
  platformActions().get(action) ??
  raiseInvalid({ code: 'INVALID_VALUE', path: 'action', message: 'is no longer offered' })

/** Whether an operation only reads, so that a repeated call has no further effect. */
export const isReadOnly = (action: string): boolean => {
  const operation = platformActions().get(action)
  return operation?.method === 'get' || operation?.reads === true
}

/** Whether an operation does nothing but show what there is: what a guardrail may ask for its context. */
export const readsOnly = (action: string): boolean =>
  /^(get|list|search)-/.test(action) && platformActions().get(action)?.reads === true

/** What of the turn that calls an operation goes with it, where it takes that. */
const forwardedTo = (
  operation: Operation,
  tool: ToolDefinition,
  { turn, context }: ToolCall,
): Record<string, unknown> =>
  turn && 'tool_context' in fieldsOf(operation.body)
    ? { tool_context: forwardedContext(context, tool.context_keys) }
    : {}

/**
 * One call of an operation through a platform tool: permission, quotas, audit and all.
 * @throws VALIDATION_FAILED for arguments that do not fit, UNAUTHORIZED without a caller, TOOL_HTTP_ERROR with the status
 *   that the operation answers
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
      message: `${action} is not called for a guardrail, which only reads`,
      meta: { tool_id: tool.id },
    })
  const { limits, idempotencyKey, turn } = call
  const asked = requestOf(operation, { ...platformArguments(tool, input), ...forwardedTo(operation, tool, call) })
  const caller = (await call.caller()) ?? raise('UNAUTHORIZED')
  const late = AbortSignal.timeout(Math.max(1, Math.ceil(limits.until - performance.now())))
  const key = idempotencyKey !== null && operation.method === 'post' ? `${idempotencyKey}.${action}` : undefined
  const invoked = callAs(caller, 'platform_tool', {
    ...asked,
    body: asked.body,
    signal: limits.signal ? AbortSignal.any([limits.signal, late]) : late,
    idempotencyKey: key?.slice(0, 255),
    origin: turn ?? undefined,
  })
  const started = performance.now()
  const answer = await withNestedLimits(limits, () => invoke(services, operation, invoked)).catch(refusedAs)
  const { status } = answer
  const ms = Math.round(performance.now() - started)
  services.log.info({ tool_id: tool.id, project_id: tool.project_id, action, status, ms }, 'tool call')
  if (answer instanceof AppError && status >= 500 && answer.cause)
    services.log.error({ err: answer.cause, tool_id: tool.id, project_id: tool.project_id, action }, 'operation failed')
  if (!(answer instanceof AppError)) return outputOf(services, answer, call)
  const { code, message, meta } = answer
  // What the caller may do and the author of a definition may not is no answer of the operation.
  if (code === 'FORBIDDEN' && meta?.resource !== undefined) throw answer
  return raise('TOOL_HTTP_ERROR', {
    message: `${action} answered ${status} ${code}`,
    meta: {
      tool_status_code: status,
      tool_response_body: truncateBytes(JSON.stringify({ error: { code, message, meta } }), SHOWN_BYTES),
      tool_url: requestPath(operation, asked.params),
      tool_method: operation.method.toUpperCase(),
    },
    cause: answer,
  })
}

/** What an operation raises is its answer; anything else is a fault. */
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
      message: 'asks for a stream, which a tool cannot answer',
    })
  }
  const answer = text ?? JSON.stringify(body ?? null)
  reserveResponseBytes(config, limits, answer.length)
  if (limits.room.bytes < 0)
    raiseInvalid({ code: 'TOO_BIG', path: 'input', message: 'leads to answers that are larger than fit into one call' })
  return JSON.parse(answer)
}

/** They follow from the operations alone, and take a millisecond each to make. */
const schemas = new WeakMap<Operation, JsonObject>()

/** The JSON Schema of the arguments of an action. */
export function actionSchema(operation: Operation): JsonObject {
  const schema = schemas.get(operation) ?? flatSchema(flatten(operation) as FlatCall, FIXED)
  schemas.set(operation, schema)
  return schema
}
