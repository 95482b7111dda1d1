import type { Call } from '#core/api/call.ts'
import type { Made } from '#core/api/idempotency.ts'
import { type Operation, type OperationResult, operations, toolNameOf } from '#core/api/operation.ts'
import { invoke } from '#core/invoke/invoke.ts'
import type { OperationTool } from './registry.ts'
import { jsonResult, type ToolResult, toolResult } from './result.ts'
import { acceptsTasks, type McpClientSession, type PendingAnswer } from './session.ts'
import { isHidden, readTaskState as lookAt, resultOfWork, type SeenTask, taskOf } from './tasks.ts'

/** Calls of operations that start long work. */

type Json = Record<string, unknown>

/** Interval at which work is polled while a call waits. */
const POLL_MS = 500

/** Returns the work if the caller may read it: a caller that may start it may lack that permission. */
const readWork = (session: McpClientSession, record: string): Promise<SeenTask | null> =>
  lookAt(session, record).catch(error => {
    if (isHidden(error)) return null
    throw error
  })

/** Returns the ID of the record from a response or from the rows created by a waiting call. */
function findRecordId({ starts }: Operation, call: Call, from: Json | Made | undefined): string | null {
  const { kind, field } = starts as NonNullable<Operation['starts']>
  const id = from?.[field] ?? from?.id ?? call.params[`${kind}_id`]
  return typeof id === 'string' ? id : null
}

/**
 * Calls an operation that starts long work. A client that accepts tasks gets one if the work takes longer than
 * MCP_TASK_AFTER_MS; other clients wait up to MCP_CALL_TIMEOUT_MS and then get the current record.
 */
export async function callLong(
  session: McpClientSession,
  answering: PendingAnswer,
  { operation }: OperationTool,
  call: Call,
  waits: boolean,
): Promise<ToolResult | Json> {
  const { services } = session
  const tasks = acceptsTasks(session)
  const { MCP_TASK_AFTER_MS, MCP_CALL_TIMEOUT_MS } = services.config
  const startedAt = performance.now()
  const until = startedAt + (tasks ? MCP_TASK_AFTER_MS : MCP_CALL_TIMEOUT_MS)
  let record: string | null = null
  const made = Promise.withResolvers<void>()
  const stopped = new AbortController()
  const watchedCall: Call = {
    ...call,
    request: { ...call.request, closed: AbortSignal.any([call.request.closed, stopped.signal]) },
    onMade(created) {
      record = findRecordId(operation, call, created)
      made.resolve()
    },
  }
  const pendingResult = invoke(services, operation, watchedCall)
  if (!waits) {
    const answer = await pendingResult
    if (!tasks) return toolResult(session, operation, answer)
    return resultOrTask(session, operation, answer, findRecordId(operation, call, answer.body as Json), until)
  }
  const progress = reportProgress(session, answering, () => record)
  try {
    const answer = await Promise.race([pendingResult, waitUntil(until, made.promise, stopped.signal)])
    if (answer) {
      await progress.last()
      record ??= findRecordId(operation, call, answer.body as Json | undefined)
      return tasks && record !== null
        ? await resultOrTask(session, operation, answer, record, until)
        : await toolResult(session, operation, answer)
    }
    // The work continues; only this call stops waiting.
    pendingResult.catch(() => {})
    if (record === null) return await toolResult(session, operation, await pendingResult)
    const seen = await readWork(session, record)
    if (!seen) {
      // Without the record, wait as for a client without tasks.
      const waited = await Promise.race([
        pendingResult,
        waitUntil(startedAt + MCP_CALL_TIMEOUT_MS, made.promise, stopped.signal),
      ])
      return waited ? await toolResult(session, operation, waited) : unreadableResult(record)
    }
    if (tasks) return createdTask(session, seen)
    return await unfinishedResult(session, seen)
  } finally {
    stopped.abort()
    progress.end()
  }
}

/** Resolves to null when the time has passed and the record of the work exists. */
async function waitUntil(until: number, made: Promise<void>, signal: AbortSignal): Promise<null> {
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

/** Returns the response if the work has ended or ends before `until`; else its task. */
async function resultOrTask(
  session: McpClientSession,
  operation: Operation,
  answer: OperationResult,
  record: string | null,
  until: number,
): Promise<ToolResult | Json> {
  let seen = record === null ? null : await readWork(session, record)
  if (!seen || seen.state.status === 'completed') return toolResult(session, operation, answer)
  while (seen && seen.state.status === 'working' && performance.now() < until) {
    await new Promise(resolve => setTimeout(resolve, POLL_MS))
    seen = await readWork(session, record as string)
  }
  if (!seen) return toolResult(session, operation, answer)
  return seen.state.status === 'completed' ? resultOfWork(session, seen) : createdTask(session, seen)
}

const createdTask = (session: McpClientSession, seen: SeenTask): Json => ({
  resultType: 'task',
  ...taskOf(session, seen),
})

/** Returns the ID of started work for a caller that may not read it. */
const unreadableResult = (id: string): ToolResult =>
  jsonResult({ id, note: 'The work was started and continues. This credential may not read it.' })

/** Returns the current record for a client whose wait has timed out. */
async function unfinishedResult(
  session: McpClientSession,
  { work, args, record, state }: SeenTask,
): Promise<ToolResult> {
  const result = await toolResult(session, operations.get(work.read), { status: 200, body: record })
  const note = `Not finished: ${state.message}. Call ${toolNameOf(work.read)} with ${JSON.stringify(args)} for the current state.`
  return { ...result, content: [...result.content, { type: 'text', text: note }] }
}

/** Sends progress while a call waits, and once at its end, if the client requested it. */
function reportProgress(session: McpClientSession, { params, notify }: PendingAnswer, record: () => string | null) {
  const token = (params._meta as Json | undefined)?.progressToken
  const isRequested = session.streams && (typeof token === 'string' || typeof token === 'number')
  let lastSent = -1
  const sendProgress = async (): Promise<void> => {
    const id = record()
    const seen = id === null ? null : await readWork(session, id).catch(() => null)
    const progress = seen?.state.progress
    if (!seen || !progress || progress.done <= lastSent) return
    lastSent = progress.done
    const total = progress.total === null ? {} : { total: progress.total }
    notify('notifications/progress', {
      progressToken: token,
      progress: progress.done,
      ...total,
      message: seen.state.message,
    })
  }
  let sending: Promise<void> | null = null
  const timer = isRequested
    ? setInterval(() => {
        sending ??= sendProgress().finally(() => {
          sending = null
        })
      }, POLL_MS)
    : undefined
  return {
    async last() {
      clearInterval(timer)
      await sending
      if (isRequested) await sendProgress()
    },
    end: () => clearInterval(timer),
  }
}
