import { Readable } from 'node:stream'
import { dataMessage, PING } from '#core/api/event-stream.ts'
import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { anonymousBodyError } from '#core/http/body.ts'
import { type MountExchange, setServiceHeader } from '#core/http/mounts.ts'
import { endUserLimits } from '#core/invoke/hooks.ts'
import { readClientOutputs } from '#execution/generations/traces/client-outputs.ts'
import { type AgUiRequest, callOperation, type Run, type ShownTurn, type ThreadMount } from '../ag-ui/call.ts'
import { isCancel } from '../ag-ui/events.ts'
import type { SubmittedOutputs } from '../ag-ui/input.ts'
import { awaitContinuation, filedApprovals } from '../ag-ui/interrupts.ts'
import { callReads, cancelReads } from '../ag-ui/reads.ts'
import { attach, beginRun, HTTP_REFUSALS, type RunOutcome } from '../ag-ui/run.ts'
import { findRun, lostPermission, openRun, reopenRun, seesSteps, shownError } from '../ag-ui/thread.ts'
import { approvalResult, errorOf, finishOf, startOf, TurnChunks } from './chunks.ts'
import { listUiMessages } from './history.ts'
import {
  answersOf,
  CHAT_KEY_PREFIX,
  type ChatInput,
  continuedMessage,
  parseChatInput,
  rewindOf,
  runInputOf,
  runOfChat,
} from './input.ts'
import { rewind, undoRewind } from './rewind.ts'
import { findLastTurn, listPendingApprovals } from './store.ts'

const MOUNT: ThreadMount = { surface: 'ui', keyPrefix: CHAT_KEY_PREFIX, directory: '/ui', answersPartly: true }

/** Handles one request of /ui/v1/chat/{agent_id}. */
export async function serveUi(services: Services, exchange: MountExchange): Promise<void> {
  const { req } = exchange
  if (!services.config.UI_MOUNT) return refuseRoute(exchange)
  const caller = await exchange.identify()
  if (!caller) throw anonymousBodyError(req)
  const request: AgUiRequest = { services, exchange, caller, mount: MOUNT }
  const agentId = String(req.params.agent_id)
  const [chatId, action, ...rest] = [req.params.route ?? []].flat()
  if (rest.length > 0) return refuseRoute(exchange)
  if (chatId === undefined) {
    requireMethod(req.method, 'POST')
    return respond(request, agentId, parseChatInput(await exchange.readJson()))
  }
  if (action === undefined) {
    requireMethod(req.method, 'GET')
    return respondWithMessages(request, agentId, chatId)
  }
  if (action === 'stream') {
    requireMethod(req.method, 'GET')
    return resume(request, agentId, chatId)
  }
  if (action !== 'stop') return refuseRoute(exchange)
  requireMethod(req.method, 'POST')
  return stop(request, agentId, chatId)
}

const refuseRoute = ({ req }: MountExchange): never =>
  raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })

function requireMethod(method: string, allowed: string): void {
  if (method !== allowed)
    throw new AppError('REQUEST_REJECTED', {
      status: 405,
      message: `${method} is not supported`,
      headers: { Allow: allowed },
    })
}

/** Streams the response to the messages of a chat. */
async function respond(request: AgUiRequest, agentId: string, input: ChatInput): Promise<void> {
  const run = await openRun(request, agentId, runInputOf(input))
  const continued = continuedMessage(input)
  const { run: begun, outcome } = await begin(run, input)
  sendChunks(begun, outcome, outcomeChunks(begun, outcome, continued?.id))
}

type Begun = { run: Run; outcome: RunOutcome }

/** Begins the run of a request, after a rewind if the request replaces a part of the chat. A refusal undoes the rewind. */
async function begin(run: Run, input: ChatInput): Promise<Begun> {
  const to = rewindOf(input)
  if (!to) return beginAt(run, input)
  let sessionId = run.sessionId
  try {
    sessionId = await rewind(run, to)
    const begun = await beginAt(await reopenRun(run, sessionId), input)
    if (!('refused' in begun.outcome) || sessionId === run.sessionId) return begun
    await undoRewind(run, sessionId)
    return { run, outcome: begun.outcome }
  } catch (error) {
    if (sessionId !== run.sessionId) await undoRewind(run, sessionId)
    if (!(error instanceof AppError) || HTTP_REFUSALS.includes(error.status)) throw error
    return { run, outcome: { refused: error } }
  }
}

async function beginAt(current: Run, input: ChatInput): Promise<Begun> {
  const { outputs, resume } = current.thread.run ? NO_ANSWERS : await openAnswers(current, input)
  const isNew = input.messages[input.messages.length - 1].role === 'user'
  if (!isNew && !outputs && resume.length === 0 && !current.thread.run)
    return { run: current, outcome: { refused: nothingNew() } }
  return {
    run: current,
    outcome: await beginRun({ ...current, input: { ...current.input, resume: [...resume] } }, outputs),
  }
}

type OpenAnswers = { outputs: SubmittedOutputs | null; resume: ReturnType<typeof answersOf>['resume'] }
const NO_ANSWERS: OpenAnswers = { outputs: null, resume: [] }

const nothingNew = (): AppError =>
  new AppError('VALIDATION_FAILED', {
    message: 'The chat waits for a message of the user',
    meta: {
      problems: [
        { code: 'INVALID_VALUE', path: 'messages', message: 'must end with a message of the user or with new answers' },
      ],
    },
  })

/** Returns the answers of a request that the chat waits for. A client repeats earlier ones, and may leave calls unanswered. */
async function openAnswers({ request, sessionId }: Run, input: ChatInput): Promise<OpenAnswers> {
  const { pool } = request.services
  const { outputs, resume } = answersOf(input)
  const hasMessage = input.messages[input.messages.length - 1].role === 'user'
  const last = outputs.size > 0 ? await findLastTurn(pool, sessionId) : null
  const pending =
    hasMessage && resume.length > 0
      ? await listPendingApprovals(
          pool,
          sessionId,
          resume.map(({ interruptId }) => interruptId),
        )
      : null
  return {
    outputs: last?.status === 'requires_action' ? submitted(last, outputs) : null,
    resume: pending ? resume.filter(({ interruptId }) => pending.includes(interruptId)) : resume,
  }
}

type LastTurn = NonNullable<Awaited<ReturnType<typeof findLastTurn>>>

/** Returns the outputs of the calls that a turn waits for; null if there are none. */
function submitted({ id, required_action }: LastTurn, outputs: ReadonlyMap<string, unknown>): SubmittedOutputs | null {
  const calls = required_action?.tool_calls as { tool_call_id: string }[] | undefined
  // The calls of a turn without stored content are not known.
  const ids = calls ? calls.map(({ tool_call_id }) => tool_call_id) : [...outputs.keys()]
  const given = ids.filter(callId => outputs.has(callId))
  if (given.length === 0) return null
  return { generation_id: id, outputs: given.map(callId => ({ tool_call_id: callId, output: outputs.get(callId) })) }
}

/** Streams the open turn of a chat from its beginning; 204 if there is none. */
async function resume(request: AgUiRequest, agentId: string, chatId: string): Promise<void> {
  const { services, exchange } = request
  const found = await findRun(request, agentId, runOfChat(chatId))
  const sessionId = found.thread.session_id
  const last = sessionId === null ? null : await findLastTurn(services.pool, sessionId)
  if (sessionId === null || !last || !OPEN.includes(last.status)) {
    await countRead(request)
    return exchange.end(204, null)
  }
  const run = { ...found, sessionId }
  const outcome = { turn: await attach(run, last.id, 0) }
  sendChunks(run, outcome, outcomeChunks(run, outcome, undefined))
}

/** Statuses of turns that a client may still follow. */
const OPEN = ['pending', 'in_progress', 'requires_action']

/** Counts a request of an end user that calls no operation. @throws ACTOR_LIMIT_EXCEEDED */
async function countRead({ services, caller }: AgUiRequest): Promise<void> {
  if (caller.end_user) await endUserLimits.only()?.(services, caller.end_user, {})
}

/** Cancels the running turn of a chat. */
async function stop(request: AgUiRequest, agentId: string, chatId: string): Promise<void> {
  const { thread } = await findRun(request, agentId, runOfChat(chatId))
  if (thread.session_id !== null)
    await callOperation(request, 'cancelSession', { params: { session_id: thread.session_id } })
  else await countRead(request)
  request.exchange.end(204, null)
}

/** Responds with the messages of a chat, for the first render of a page. */
async function respondWithMessages(request: AgUiRequest, agentId: string, chatId: string): Promise<void> {
  const found = await findRun(request, agentId, runOfChat(chatId))
  const sessionId = found.thread.session_id
  if (sessionId === null) await countRead(request)
  const messages = sessionId === null ? [] : await listUiMessages({ ...found, sessionId })
  request.exchange.res.setHeader('Cache-Control', 'no-store')
  request.exchange.end(200, JSON.stringify({ id: chatId, messages }))
}

const DONE = 'data: [DONE]\n\n'

/** Sends chunks as the response. */
function sendChunks({ request, sessionId }: Run, outcome: RunOutcome, chunks: AsyncGenerator<string | Buffer>): void {
  const { exchange } = request
  const stream = Readable.from(chunks, { objectMode: false })
  // The client may disconnect before the turn is read.
  if ('turn' in outcome) stream.once('close', () => outcome.turn.stream.destroy())
  exchange.noted.session_id = sessionId
  setServiceHeader(request, 'Session-Id', sessionId)
  exchange.res.setHeader('Cache-Control', 'no-store')
  exchange.res.setHeader('X-Vercel-AI-UI-Message-Stream', 'v1')
  exchange.stream(200, 'text/event-stream', stream)
}

/** @param continued id of the client's message that the response continues */
async function* outcomeChunks(run: Run, outcome: RunOutcome, continued: string | undefined) {
  yield* outcomeMessages(run, outcome, continued)
  yield DONE
}

async function* outcomeMessages(
  run: Run,
  outcome: RunOutcome,
  continued: string | undefined,
): AsyncGenerator<string | Buffer, void> {
  if ('refused' in outcome) return yield dataMessage(errorOf(shownError(run, outcome.refused)))
  if ('operator' in outcome) {
    // Not a message of the assistant: none follows before the operator writes.
    const notice = { type: 'data-operator', data: outcome.operator, transient: true }
    for (const chunk of [startOf(), notice, finishOf()]) yield dataMessage(chunk)
    return
  }
  if ('turn' in outcome) {
    const { turn, unstored } = outcome
    yield dataMessage(startOf(continued ?? messageIdOf(turn.generation_id)))
    const hasFailed = yield* turnMessages(run, turn, !unstored)
    if (unstored && !hasFailed) yield dataMessage(errorOf(shownError(run, unstored)))
    return
  }
  yield* continuationMessages(run, outcome.decided, continued)
}

/** Returns the id of the message of a turn. */
export const messageIdOf = (generationId: string): string => `msg_${generationId}`

/** Yields the chunks of a turn. Returns whether it has failed. */
async function* turnMessages(
  run: Run,
  { generation_id, stream, format }: ShownTurn,
  isLast: boolean,
): AsyncGenerator<string | Buffer, boolean> {
  const { request, thread } = run
  const isCancelled = cancelReads(request)
  const chunks = new TurnChunks(
    { generation_id, detailed: seesSteps(run), labelled: request.caller.end_user !== undefined },
    {
      calls: callReads(request),
      outputs: id => readClientOutputs(request.services, id),
      isCancelled: async failure => isCancel(failure) || (await isCancelled(generation_id)),
      approvals: filed => filedApprovals(request, thread.project_id, filed),
    },
  )
  format.translate = (event, data) => chunks.translate(event, data)
  for await (const message of stream) yield message as Buffer
  for (const chunk of chunks.end(isLast)) yield dataMessage(chunk)
  return chunks.hasFailed
}

/** Yields the outcomes of decided approvals and the turns that continue with them, one after the other. */
async function* continuationMessages(
  run: Run,
  approvals: readonly string[],
  continued: string | undefined,
): AsyncGenerator<string | Buffer, void> {
  let isStarted = continued !== undefined
  if (isStarted) yield dataMessage(startOf(continued))
  for (const id of approvals) {
    const waiting = awaitContinuation(run, id)
    let next = await waiting.next()
    for (; !next.done; next = await waiting.next()) {
      const refusal = await lostPermission(run)
      if (refusal) return yield dataMessage(errorOf(shownError(run, refusal)))
      yield PING
    }
    const { generation_id, result } = next.value
    // A new message of the user follows the message with the call.
    if (continued !== undefined) yield dataMessage(approvalResult(id, result.content))
    if (generation_id === null) continue
    if (!isStarted) yield dataMessage(startOf(messageIdOf(generation_id)))
    isStarted = true
    if (yield* turnMessages(run, await attach(run, generation_id, 0), false)) return
  }
  yield dataMessage(finishOf())
}
