import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { isAllowed } from '#core/api/access.ts'
import { kinds } from '#core/api/kind.ts'
import { type AwaitedInput, type LongWork, longWorkOf, type WorkRow, type WorkState } from '#core/api/long-work.ts'
import { operations, toolNameOf } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { AppError } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import { withTenant } from '#core/db/tenant-context.ts'
import { MAX_REQUEST_WAIT_MS } from '#core/invoke/invocation.ts'
import { servicesOfId } from '#core/services/cells.ts'
import { invokeInSession, readItem } from './invoke.ts'
import { errorResult, type ToolResult, toolResult } from './result.ts'
import {
  acceptsForms,
  acceptsTasks,
  INVALID_PARAMS,
  invalidParams,
  type McpClientSession,
  MISSING_CAPABILITY,
  type PendingAnswer,
  RpcError,
} from './session.ts'
import { recordOfTaskId, taskId } from './task-id.ts'
import { TASKS } from './versions.ts'

/** Long work as tasks: a task is a view of the record of the work; it is not stored. */

type Json = Record<string, unknown>

/** Current state of long work for one caller. */
export type SeenTask = { work: LongWork; args: Json; row: WorkRow; record: Json; state: WorkState }

const refuseUnknownTask = (): never => invalidParams('Task not found')

export const isHidden = (error: unknown): boolean =>
  error instanceof AppError && (error.status === 403 || error.status === 404)

/** Returns the long work of a record; null if it is hidden from the caller or deleted. */
export async function readTaskState(session: McpClientSession, recordId: string): Promise<SeenTask | null> {
  const { caller } = session
  const services = await servicesOfId(session.services, recordId)
  const work = longWorkOf(recordId)
  const args = await work?.args(recordId, services)
  if (!work || !args) return null
  const read = await readItem(session, work.read, args).catch(error => (isHidden(error) ? null : Promise.reject(error)))
  if (!read) return null
  const { record, row } = read as { record: Json; row: WorkRow }
  const tenancy = { tenant: row.project_id, patienceMs: MAX_REQUEST_WAIT_MS }
  const state = await withTenant(tenancy, () => work.state({ services, caller, record }, row))
  return { work, args, row, record, state }
}

/** Returns the inputs that the caller may submit: with any, the work is `input_required`, else `working`. */
const inputsFor = ({ caller }: McpClientSession, { awaited = [] }: WorkState): readonly AwaitedInput[] =>
  awaited.filter(({ permission: { action, target } }) => isAllowed(caller, action, target))

const FAST_MS = 10_000

/** Returns the recommended poll interval. */
function pollInterval({ row: { created_at }, state: { status } }: SeenTask): number {
  if (status === 'input_required') return 15_000
  return systemClock.now().getTime() - Date.parse(created_at) < FAST_MS ? 1000 : 5000
}

/** Problem of the last input to a task, for later requests of the same process. */
const inputProblems = processSingleton(() => new LRUCache<string, string>({ max: 10_000, ttl: 600_000 }))

/** Returns the task without result or input requests. */
export function taskOf(session: McpClientSession, seen: SeenTask): Json & { status: string } {
  const { row, state } = seen
  const id = taskId(session.services, row.id, session.caller)
  const inputs = inputsFor(session, state)
  const isShown = inputs.length > 0 && acceptsForms(session)
  const status = state.status === 'input_required' && !isShown ? 'working' : state.status
  const problem = inputProblems(session.services).get(id)
  // A client without forms submits the input with the tools for it.
  const tools = (state.awaited ?? []).map(({ operation }) => toolNameOf(operation))
  const message =
    state.status === 'input_required' && !isShown
      ? `${state.message}; submit it with ${[...new Set(tools)].join(' or ')}`
      : state.message
  return {
    taskId: id,
    status,
    statusMessage: problem && state.status === 'input_required' ? `${message}. ${problem}` : message,
    createdAt: new Date(row.created_at).toISOString(),
    lastUpdatedAt: new Date(state.updated_at ?? row.updated_at).toISOString(),
    ttlMs: null,
    pollIntervalMs: pollInterval(seen),
  }
}

const elicitationOf = ({ message, form }: AwaitedInput): object => ({
  method: 'elicitation/create',
  params: { mode: 'form', message, requestedSchema: form },
})

/** Returns the result of completed work as a tool result. */
export async function resultOfWork(
  session: McpClientSession,
  { work, state: { result } }: SeenTask,
): Promise<ToolResult> {
  if (!result) return { content: [{ type: 'text', text: '{}' }] }
  if ('body' in result) return toolResult(session, operations.get(work.read), { status: 200, body: result.body })
  const { code, message, meta } = result.failure
  return errorResult(session, new AppError(code as never, { message, meta }))
}

/** Returns the task with its result or its input requests. */
async function detailedTask(session: McpClientSession, seen: SeenTask): Promise<Json> {
  const task = taskOf(session, seen)
  if (task.status === 'completed') return { ...task, result: await resultOfWork(session, seen) }
  if (task.status !== 'input_required') return task
  const inputs = inputsFor(session, seen.state)
  return { ...task, inputRequests: Object.fromEntries(inputs.map(input => [input.key, elicitationOf(input)])) }
}

/** Requires that a request declares tasks. @throws RpcError -32021 */
export function requireExtension(session: McpClientSession): void {
  if (acceptsTasks(session)) return
  throw new RpcError(MISSING_CAPABILITY, `Request does not declare ${TASKS}`, {
    requiredCapabilities: { extensions: { [TASKS]: {} } },
  })
}

/** Returns the record of a task of the caller. @throws RpcError -32602 for all other IDs */
function recordOf(session: McpClientSession, params: Json): string {
  requireExtension(session)
  const record =
    typeof params.taskId === 'string' ? recordOfTaskId(session.services, params.taskId, session.caller) : null
  return record !== null && longWorkOf(record) ? record : refuseUnknownTask()
}

/** Returns the long work of a task; null if it was deleted. @throws RpcError -32602 if it is hidden from the caller */
async function readTaskWork(session: McpClientSession, record: string): Promise<SeenTask | null> {
  const seen = await readTaskState(session, record)
  if (seen) return seen
  const kind = kinds.get((longWorkOf(record) as LongWork).kind)
  const { pool } = await servicesOfId(session.services, record)
  return (await kind.find(pool, record)) ? refuseUnknownTask() : null
}

/** Handles `tasks/get`. */
export async function getTask(session: McpClientSession, { params }: Pick<PendingAnswer, 'params'>): Promise<object> {
  const record = recordOf(session, params)
  const seen = await readTaskWork(session, record)
  if (seen) return detailedTask(session, seen)
  const now = new Date().toISOString()
  const task = { taskId: params.taskId, createdAt: now, lastUpdatedAt: now, ttlMs: null }
  const gone = longWorkOf(record)?.gone
  if (gone) {
    const result = await toolResult(session, operations.get(gone.operation), { status: 200, body: gone.body })
    return { ...task, status: 'completed', statusMessage: gone.message, result }
  }
  const message = 'Record was deleted'
  return { ...task, status: 'failed', statusMessage: message, error: { code: INVALID_PARAMS, message } }
}

/** Handles `tasks/cancel`: cancels the work if possible, and acknowledges the request otherwise. */
export async function cancelTask(session: McpClientSession, { params }: PendingAnswer): Promise<object> {
  const seen = await readTaskWork(session, recordOf(session, params))
  const isOver = !seen || seen.state.status === 'completed' || seen.state.status === 'cancelled'
  if (isOver || !seen.work.cancel) return {}
  try {
    await invokeInSession(session, seen.work.cancel, seen.args)
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    if (error.status === 403) return invalidParams('Task cannot be cancelled with this credential')
    // The work has ended in the meantime.
    if (error.status !== 409 && error.status !== 404) throw error
  }
  return {}
}

const Response = z.object({
  action: z.enum(['accept', 'decline', 'cancel']),
  content: z.record(z.string(), z.unknown()).optional(),
})

/** Handles `tasks/update`: passes user input to the operations that accept it. */
export async function updateTask(
  session: McpClientSession,
  { params, inputResponses }: PendingAnswer,
): Promise<object> {
  const seen = await readTaskWork(session, recordOf(session, params))
  if (!seen) return {}
  for (const input of inputsFor(session, seen.state)) {
    const { data } = Response.safeParse(inputResponses[input.key])
    if (data) await submitInput(session, params.taskId as string, input, data)
  }
  return {}
}

async function submitInput(
  session: McpClientSession,
  task: string,
  input: AwaitedInput,
  { action, content = {} }: z.output<typeof Response>,
): Promise<void> {
  if (action === 'cancel') return
  const { services } = session
  const wrong = action === 'accept' ? findFormProblem(input.form, content) : null
  if (wrong) return void inputProblems(services).set(task, wrong)
  const submission = action === 'accept' ? input.accepted(content) : input.declined()
  if (!submission) return
  try {
    await invokeInSession(session, submission.operation ?? input.operation, submission.args)
    inputProblems(services).delete(task)
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    // Another caller has submitted input, or the permission was revoked.
    if (error.status >= 500) throw error
    inputProblems(services).set(task, error.message)
  }
}

type Property = { type: string; enum?: string[]; maxLength?: number }

/** Returns the first problem of form content; null if it is valid. */
function findFormProblem(form: Json, content: Json): string | null {
  const { properties, required = [] } = form as { properties: Record<string, Property>; required?: string[] }
  const unknown = Object.keys(content).find(name => !Object.hasOwn(properties, name))
  if (unknown !== undefined) return 'The input has fields that are not in the form'
  for (const [name, { type, enum: choices, maxLength }] of Object.entries(properties)) {
    const value = content[name]
    if (value === undefined || value === null) {
      if (required.includes(name)) return `${name} is required`
    } else if (typeof value !== type) return `${name} must be a ${type}`
    else if (choices && !choices.includes(value as string)) return `${name} must be one of ${choices.join(', ')}`
    else if (maxLength !== undefined && (value as string).length > maxLength)
      return `${name} must have at most ${maxLength} characters`
  }
  return null
}
