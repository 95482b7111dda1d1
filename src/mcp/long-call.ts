import type { Made } from '../core/api/idempotency.ts'
import { type Operation, type OperationResult, operations } from '../core/api/operation.ts'
import type { Call } from '../core/invoke/call.ts'
import { invoke } from '../core/invoke/invoke.ts'
import { type OperationTool, toKebabCase } from './registry.ts'
import { jsonResult, type ToolResult, toolResult } from './result.ts'
import { type McpClientSession, type PendingAnswer, takesTasks } from './session.ts'
import { isHidden, readTaskState as lookAt, resultOfWork, type SeenTask, taskOf } from './tasks.ts'

/** Calls of operations that start long work. */

type Json = Record<string, unknown>

/** How often work is looked at that a call waits for. */
const LOOK_MS = 500

/** The work as far as the caller may read it: who may start it need not be one who may. */
const look = (session: McpClientSession, record: string): Promise<SeenTask | null> =>
  lookAt(session, record).catch(error => {
    if (isHidden(error)) return null
    throw error
  })

/** The id of the record, out of an answer or of what a waiting call has made. */
function recordOf({ starts }: Operation, call: Call, from: Json | Made | undefined): string | null {
  const { kind, field } = starts as NonNullable<Operation['starts']>
  const id = from?.[field] ?? from?.id ?? call.params[`${kind}_id`]
  return typeof id === 'string' ? id : null
}

/**
 * Calls such an operation. A client that takes tasks gets one when the work is not over within MCP_TASK_AFTER_MS; others wait
 * as long as MCP_CALL_TIMEOUT_MS, and then get the record as it is.
 */
export async function callLong(
  session: McpClientSession,
  answering: PendingAnswer,
  { operation }: OperationTool,
  call: Call,
  waits: boolean,
): Promise<ToolResult | Json> {
  const { services } = session
  const tasks = takesTasks(session)
  const { MCP_TASK_AFTER_MS, MCP_CALL_TIMEOUT_MS } = services.config
  const begun = performance.now()
  const until = begun + (tasks ? MCP_TASK_AFTER_MS : MCP_CALL_TIMEOUT_MS)
  let record: string | null = null
  const made = Promise.withResolvers<void>()
  const over = new AbortController()
  const asked: Call = {
    ...call,
    request: { ...call.request, closed: AbortSignal.any([call.request.closed, over.signal]) },
    onMade(what) {
      record = recordOf(operation, call, what)
      made.resolve()
    },
  }
  const ended = invoke(services, operation, asked)
  if (!waits) {
    const answer = await ended
    if (!tasks) return toolResult(session, operation, answer)
    return settled(session, operation, answer, recordOf(operation, call, answer.body as Json), until)
  }
  const progress = reportProgress(session, answering, () => record)
  try {
    const answer = await Promise.race([ended, late(until, made.promise, over.signal)])
    if (answer) {
      await progress.last()
      record ??= recordOf(operation, call, answer.body as Json | undefined)
      return tasks && record !== null
        ? await settled(session, operation, answer, record, until)
        : await toolResult(session, operation, answer)
    }
    // The work goes on; only this call has waited long enough.
    ended.catch(() => {})
    if (record === null) return await toolResult(session, operation, await ended)
    const seen = await look(session, record)
    if (!seen) {
      // Without the record it is waited for as a client without tasks waits.
      const waited = await Promise.race([ended, late(begun + MCP_CALL_TIMEOUT_MS, made.promise, over.signal)])
      return waited ? await toolResult(session, operation, waited) : unreadable(record)
    }
    if (tasks) return createdTask(session, seen)
    return await unfinished(session, seen)
  } finally {
    over.abort()
    progress.end()
  }
}

/** Resolves to null once the time is over and the work is known. */
async function late(until: number, made: Promise<void>, signal: AbortSignal): Promise<null> {
  await new Promise<void>(resolve => {
    const timer = setTimeout(resolve, Math.max(0, until - performance.now()))
    signal.addEventListener('abort', () => {
      clearTimeout(timer)
      resolve()
    })
  })
  await made
  return null
}

/** The answer where the work is over, when need be a little later; else the task of it. */
async function settled(
  session: McpClientSession,
  operation: Operation,
  answer: OperationResult,
  record: string | null,
  until: number,
): Promise<ToolResult | Json> {
  let seen = record === null ? null : await look(session, record)
  if (!seen || seen.state.status === 'completed') return toolResult(session, operation, answer)
  while (seen && seen.state.status === 'working' && performance.now() < until) {
    await new Promise(resolve => setTimeout(resolve, LOOK_MS))
    seen = await look(session, record as string)
  }
  if (!seen) return toolResult(session, operation, answer)
  return seen.state.status === 'completed' ? resultOfWork(session, seen) : createdTask(session, seen)
}

const createdTask = (session: McpClientSession, seen: SeenTask): Json => ({
  resultType: 'task',
  ...taskOf(session, seen),
})

/** What is known of work that was started, for a caller that may not read it. */
const unreadable = (id: string): ToolResult =>
  jsonResult({ id, note: 'It was started and goes on. This credential may not read it.' })

/** The record as it is, for a client that has waited long enough. */
async function unfinished(session: McpClientSession, { work, args, record, state }: SeenTask): Promise<ToolResult> {
  const result = await toolResult(session, operations.get(work.read), { status: 200, body: record })
  const note = `It is not over: ${state.message}. Read it by ${toKebabCase(work.read)} with ${JSON.stringify(args)}.`
  return { ...result, content: [...result.content, { type: 'text', text: note }] }
}

/** Sends how far the work is while a call waits, and once more at its end, where the client asked for it. */
function reportProgress(session: McpClientSession, { params, notify }: PendingAnswer, record: () => string | null) {
  const token = (params._meta as Json | undefined)?.progressToken
  const isAsked = session.streams && (typeof token === 'string' || typeof token === 'number')
  let told = -1
  const tell = async (): Promise<void> => {
    const id = record()
    const seen = id === null ? null : await look(session, id).catch(() => null)
    const progress = seen?.state.progress
    if (!seen || !progress || progress.done <= told) return
    told = progress.done
    const total = progress.total === null ? {} : { total: progress.total }
    notify('notifications/progress', {
      progressToken: token,
      progress: progress.done,
      ...total,
      message: seen.state.message,
    })
  }
  let telling: Promise<void> | null = null
  const timer = isAsked
    ? setInterval(() => {
        telling ??= tell().finally(() => {
          telling = null
        })
      }, LOOK_MS)
    : undefined
  return {
    async last() {
      clearInterval(timer)
      await telling
      if (isAsked) await tell()
    },
    end: () => clearInterval(timer),
  }
}
