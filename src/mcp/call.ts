import { z } from 'zod'
import { type Call, callAs, identifyOnce, jsonUpload } from '#core/api/call.ts'
import { flatten, unflatten } from '#core/api/flatten.ts'
import type { Operation } from '#core/api/operation.ts'
import { requestPath } from '#core/api/parameters.ts'
import type { Caller } from '#core/iam/caller.ts'
import { invoke } from '#core/invoke/invoke.ts'
import { callLong } from './long-call.ts'
import { LEFT_OUT, type OperationTool, operationTool } from './registry.ts'
import { errorResult, type ToolResult, toolResult } from './result.ts'
import { acceptsTasks, invalidParams, type McpClientSession, type PendingAnswer } from './session.ts'
import { fixedTool } from './tools.ts'
import { isWithin } from './view.ts'

type Json = Record<string, unknown>

const Params = z.object({
  name: z.string(),
  arguments: z.record(z.string(), z.unknown()).nullish(),
  _meta: z.record(z.string(), z.unknown()).optional(),
})

/** Handles `tools/call`. */
export async function callMcpTool(session: McpClientSession, answering: PendingAnswer): Promise<object> {
  const { data } = Params.safeParse(answering.params)
  if (!data) return invalidParams('name must be a string and arguments an object')
  const tool = fixedTool(data.name)
  if (!tool) return callMcpOperation(session, answering, data.name, data.arguments ?? {})
  session.exchange.noted.tool = data.name
  try {
    return await tool.run(session, data.arguments ?? {}, answering)
  } catch (error) {
    return errorResult(session, error)
  }
}

/** Calls an operation by its tool name, with the permissions of the request. */
export async function callMcpOperation(
  session: McpClientSession,
  answering: PendingAnswer,
  name: string,
  args: Json,
): Promise<ToolResult | Json> {
  const tool = operationTool(name)
  if (!tool || !isWithin(session.view, tool)) return invalidParams(`Tool ${name.slice(0, 100)} not found`)
  session.exchange.noted.tool = name
  const { operation } = tool
  try {
    const { call, waits } = buildCall(session, answering, tool, args)
    if (operation.starts && String(args.wait) !== 'false') return await callLong(session, answering, tool, call, waits)
    return await toolResult(session, operation, await invoke(session.services, operation, call))
  } catch (error) {
    return errorResult(session, error)
  }
}

/** Adds the project of a bound credential where the path names one and the arguments do not. */
const inBoundProject = ({ path }: Operation, args: Json, { project_id }: Caller): Json =>
  project_id !== null && args.project_id === undefined && path.includes('{project_id}') ? { ...args, project_id } : args

/** Builds the call of an operation from flat arguments. @throws VALIDATION_FAILED */
function buildCall(
  session: McpClientSession,
  { params, signal }: Pick<PendingAnswer, 'params' | 'signal'>,
  { operation }: OperationTool,
  args: Json,
): { call: Call; waits: boolean } {
  const { caller, exchange, modern } = session
  const request = unflatten(operation, inBoundProject(operation, args, caller), { without: LEFT_OUT })
  const waits = waitByDefault(session, operation, args, request)
  const key = (params._meta as Json | undefined)?.idempotency_key
  const call = callAs(caller, 'mcp', {
    params: request.params,
    query: request.query,
    // Like REST, where an empty body is an empty object, so that defaults apply.
    body: operation.receive ? undefined : (request.body ?? (operation.body ? {} : undefined)),
    // In protocol versions before 2026, a client that disconnects only stops waiting.
    signal: modern || operation.starts ? signal : undefined,
    idempotencyKey: operation.method === 'post' && key != null ? String(key) : undefined,
  })
  const extended = {
    ...call,
    identify: identifyOnce(caller, exchange.identify),
    path: requestPath(operation, request.params),
    request: { ...exchange.request, closed: call.request.closed },
    upload: operation.receive ? jsonUpload(request.body) : undefined,
  }
  return { call: extended, waits }
}

/**
 * Sets the default of `wait`: waits, unless the client accepts tasks and the operation bounds its wait. Returns whether
 * the call waits.
 */
function waitByDefault(
  session: McpClientSession,
  operation: Operation,
  args: Json,
  request: ReturnType<typeof unflatten>,
): boolean {
  const field = flatten(operation)?.fields.get('wait')
  if (!field) return false
  const wait =
    args.wait === undefined ? !(acceptsTasks(session) && operation.starts?.bounded) : String(args.wait) === 'true'
  if (args.wait !== undefined) return wait
  if (field.in === 'query') request.query.wait = String(wait)
  else request.body = { ...request.body, wait }
  return wait
}
