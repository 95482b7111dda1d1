import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { AppError } from '../core/api/errors.ts'
import { kinds } from '../core/api/kind.ts'
import { type AwaitedInput, type LongWork, longWorkOf, type WorkRow, type WorkState } from '../core/api/long-work.ts'
import { operations } from '../core/api/operation.ts'
import { withTenant } from '../core/db/tenant-context.ts'
import { isAllowed } from '../core/iam/access.ts'
import { MAX_REQUEST_WAIT_MS } from '../core/invoke/invocation.ts'
import { processSingleton } from '../core/process/process-singleton.ts'
import { elicitApproval, readItem } from './ask.ts'
import { toKebabCase } from './registry.ts'
import { errorResult, type ToolResult, toolResult } from './result.ts'
import {
  INVALID_PARAMS,
  invalidParams,
  type McpClientSession,
  MISSING_CAPABILITY,
  type PendingAnswer,
  RpcError,
  takesForms,
  takesTasks,
} from './session.ts'
import { recordIn, taskId } from './task-id.ts'
import { TASKS } from './versions.ts'

/** Long work as tasks: a task is a view of the record of the work, and nothing is stored of it. */

type Json = Record<string, unknown>

/** Work as it stands, for one caller. */
export type SeenTask = { work: LongWork; args: Json; row: WorkRow; record: Json; state: WorkState }

const unknownTask = (): never => invalidParams('There is no such task')

export const isHidden = (error: unknown): boolean =>
  error instanceof AppError && (error.status === 403 || error.status === 404)

/** Long work as the caller may see it; null for what is hidden from it, or gone. */
export async function readTaskState(session: McpClientSession, recordId: string): Promise<SeenTask | null> {
  const { services, caller } = session
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

/** Work that a caller may answer something of is `input_required` for it; else it only works. */
const inputsFor = ({ caller }: McpClientSession, { awaited = [] }: WorkState): readonly AwaitedInput[] =>
  awaited.filter(({ permission: { action, target } }) => isAllowed(caller, action, target))

const FAST_MS = 10_000

/** How soon it is worth asking again. */
function pollInterval({ row: { created_at }, state: { status } }: SeenTask): number {
  if (status === 'input_required') return 15_000
  return Date.now() - Date.parse(created_at) < FAST_MS ? 1000 : 5000
}

/** What was wrong with the last answer to a task, for who asks in the same process. */
const refusals = processSingleton(() => new LRUCache<string, string>({ max: 10_000, ttl: 600_000 }))

/** The task as it stands, without what came of it. */
export function taskOf(session: McpClientSession, seen: SeenTask): Json & { status: string } {
  const { row, state } = seen
  const id = taskId(session.services, row.id, session.caller)
  const inputs = inputsFor(session, state)
  const isShown = inputs.length > 0 && takesForms(session)
  const status = state.status === 'input_required' && !isShown ? 'working' : state.status
  const refused = refusals(session.services).get(id)
  // A client without forms finishes by the tools that take the answers.
  const others = (state.awaited ?? []).map(({ operation }) => toKebabCase(operation))
  const message =
    state.status === 'input_required' && !isShown
      ? `${state.message}; ${[...new Set(others)].join(' or ')} answers it`
      : state.message
  return {
    taskId: id,
    status,
    statusMessage: refused && state.status === 'input_required' ? `${message}. ${refused}` : message,
    createdAt: new Date(row.created_at).toISOString(),
    lastUpdatedAt: new Date(state.updated_at ?? row.updated_at).toISOString(),
    ttlMs: null,
    pollIntervalMs: pollInterval(seen),
  }
}

const requestOf = ({ message, form }: AwaitedInput): object => ({
  method: 'elicitation/create',
  params: { mode: 'form', message, requestedSchema: form },
})

/** What the tool gives that started work which is over. */
export async function resultOfWork(
  session: McpClientSession,
  { work, state: { result } }: SeenTask,
): Promise<ToolResult> {
  if (!result) return { content: [{ type: 'text', text: '{}' }] }
  if ('body' in result) return toolResult(session, operations.get(work.read), { status: 200, body: result.body })
  const { code, message, meta } = result.failure
  return errorResult(session, new AppError(code as never, { message, meta }))
}

/** The task with what came of it, or with what is awaited. */
async function detailed(session: McpClientSession, seen: SeenTask): Promise<Json> {
  const task = taskOf(session, seen)
  if (task.status === 'completed') return { ...task, result: await resultOfWork(session, seen) }
  if (task.status !== 'input_required') return task
  const inputs = inputsFor(session, seen.state)
  return { ...task, inputRequests: Object.fromEntries(inputs.map(input => [input.key, requestOf(input)])) }
}

/** Raises -32021 for a request that does not declare tasks. */
export function requireExtension(session: McpClientSession): void {
  if (takesTasks(session)) return
  throw new RpcError(MISSING_CAPABILITY, `The request does not declare ${TASKS}`, {
    requiredCapabilities: { extensions: { [TASKS]: {} } },
  })
}

/** The record of a task of the caller. Raises -32602 for all others alike. */
function recordOf(session: McpClientSession, params: Json): string {
  requireExtension(session)
  const record = typeof params.taskId === 'string' ? recordIn(session.services, params.taskId, session.caller) : null
  return record !== null && longWorkOf(record) ? record : unknownTask()
}

/** Long work of a task; null where it is gone. Raises -32602 for what is hidden from the caller. */
async function seenOf(session: McpClientSession, record: string): Promise<SeenTask | null> {
  const seen = await readTaskState(session, record)
  if (seen) return seen
  const kind = kinds.get((longWorkOf(record) as LongWork).kind)
  return (await kind.find(session.services.pool, record)) ? unknownTask() : null
}

/** Answers `tasks/get`. */
export async function getTask(session: McpClientSession, { params }: Pick<PendingAnswer, 'params'>): Promise<object> {
  const record = recordOf(session, params)
  const seen = await seenOf(session, record)
  if (seen) return detailed(session, seen)
  const now = new Date().toISOString()
  const task = { taskId: params.taskId, createdAt: now, lastUpdatedAt: now, ttlMs: null }
  const gone = longWorkOf(record)?.gone
  if (gone) {
    const result = await toolResult(session, operations.get(gone.operation), { status: 200, body: gone.body })
    return { ...task, status: 'completed', statusMessage: gone.message, result }
  }
  const message = 'The record was deleted'
  return { ...task, status: 'failed', statusMessage: message, error: { code: INVALID_PARAMS, message } }
}

/** Answers `tasks/cancel`: what can be stopped is, and anything else only acknowledged. */
export async function cancelTask(session: McpClientSession, { params }: PendingAnswer): Promise<object> {
  const seen = await seenOf(session, recordOf(session, params))
  const isOver = !seen || seen.state.status === 'completed' || seen.state.status === 'cancelled'
  if (isOver || !seen.work.cancel) return {}
  try {
    await elicitApproval(session, seen.work.cancel, seen.args)
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    if (error.status === 403) return invalidParams('The task may not be cancelled by this credential')
    // It has ended meanwhile.
    if (error.status !== 409 && error.status !== 404) throw error
  }
  return {}
}

const Response = z.object({
  action: z.enum(['accept', 'decline', 'cancel']),
  content: z.record(z.string(), z.unknown()).optional(),
})

/** Answers `tasks/update`: hands answers of people to the operations that take them. */
export async function updateTask(
  session: McpClientSession,
  { params, inputResponses }: PendingAnswer,
): Promise<object> {
  const seen = await seenOf(session, recordOf(session, params))
  if (!seen) return {}
  for (const input of inputsFor(session, seen.state)) {
    const { data } = Response.safeParse(inputResponses[input.key])
    if (data) await give(session, params.taskId as string, input, data)
  }
  return {}
}

async function give(
  session: McpClientSession,
  task: string,
  input: AwaitedInput,
  { action, content = {} }: z.output<typeof Response>,
): Promise<void> {
  if (action === 'cancel') return
  const { services } = session
  const wrong = action === 'accept' ? problemOf(input.form, content) : null
  if (wrong) return void refusals(services).set(task, wrong)
  const asked = action === 'accept' ? input.accepted(content) : input.declined()
  if (!asked) return
  try {
    await elicitApproval(session, asked.operation ?? input.operation, asked.args)
    refusals(services).delete(task)
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    // Somebody else has answered, or may now.
    if (error.status >= 500) throw error
    refusals(services).set(task, error.message)
  }
}

type Property = { type: string; enum?: string[]; maxLength?: number }

/** What is wrong with an answer to a form; null when it fits. */
function problemOf(form: Json, content: Json): string | null {
  const { properties, required = [] } = form as { properties: Record<string, Property>; required?: string[] }
  const unknown = Object.keys(content).find(name => !Object.hasOwn(properties, name))
  if (unknown !== undefined) return 'The answer has fields that the form does not have'
  for (const [name, { type, enum: choices, maxLength }] of Object.entries(properties)) {
    const value = content[name]
    if (value === undefined || value === null) {
      if (required.includes(name)) return `${name} is required`
    } else if (typeof value !== type) return `${name} must be a ${type}`
    else if (choices && !choices.includes(value as string)) return `${name} must be one of ${choices.join(', ')}`
    else if (maxLength !== undefined && (value as string).length > maxLength)
      return `${name} must be at most ${maxLength} characters`
  }
  return null
}
