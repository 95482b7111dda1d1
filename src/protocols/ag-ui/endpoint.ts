import { Readable } from 'node:stream'
import { ownsSession } from '../../conversation/sessions/end-user.ts'
import { findSession, sessionKind } from '../../conversation/sessions/kind.ts'
import { endUserError } from '../../core/api/end-user.ts'
import { AppError, raise } from '../../core/api/errors.ts'
import { dataMessage, PING } from '../../core/api/event-stream.ts'
import { anonymousBodyError } from '../../core/http/body.ts'
import { type MountExchange, serviceHeader, setServiceHeader } from '../../core/http/mounts.ts'
import { canSeeProject, isAllowed, requirePermitted } from '../../core/iam/access.ts'
import { countKeyRequest } from '../../core/invoke/hooks.ts'
import type { Services } from '../../core/process/services.ts'
import { agentKind } from '../../execution/agents/model.ts'
import { generationKind } from '../../execution/generations/model.ts'
import { type AgUiRequest, callOperation, type Run, type ShownTurn } from './call.ts'
import { capabilitiesOf } from './capabilities.ts'
import { finishedRun, messagesSnapshot, runError, startedRun, TurnTranslation } from './events.ts'
import { completedHistory } from './history.ts'
import { type Message, parseRunInput, type RunInput, THREAD_KEY_PREFIX, turnOfMessage } from './input.ts'
import { awaitContinuation, filedApprovals } from './interrupts.ts'
import { agentNameReads, callReads, cancelReads, usageReads } from './reads.ts'
import { attach, beginRun, type RunOutcome } from './run.ts'
import { ClientState, readState, replacesState } from './state.ts'
import { findThread } from './store.ts'

/** Handles one request of /ag-ui/{agent_id}. */
export async function serveAgUi(services: Services, exchange: MountExchange): Promise<void> {
  const { req } = exchange
  if (!services.config.AGUI_MOUNT) raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })
  const caller = await exchange.identify()
  if (!caller) throw anonymousBodyError(req)
  const request = { services, exchange, caller }
  const agentId = String(req.params.agent_id)
  if (req.method === 'GET') return exchange.end(200, JSON.stringify(await capabilitiesOf(request, agentId)))
  if (req.method !== 'POST')
    throw new AppError('REQUEST_REJECTED', {
      status: 405,
      message: `${req.method} is not supported`,
      headers: { Allow: 'GET, POST' },
    })
  const run = await openRun(request, agentId, parseRunInput(await exchange.readJson()))
  exchange.noted.session_id = run.sessionId
  setServiceHeader(request, 'Session-Id', run.sessionId)
  exchange.res.setHeader('Cache-Control', 'no-store')
  exchange.stream(200, 'text/event-stream', await runEvents(run))
}

type Actor = { id: string } | { external_id: string }

/** Returns the end user of the token, or the end user that another credential names in a header; null for none. */
function actorOf(request: AgUiRequest): Actor | null {
  const { caller } = request
  if (caller.end_user) return { id: caller.end_user.actor_id }
  const external_id = serviceHeader(request, 'Actor')
  return external_id === undefined ? null : { external_id }
}

/**
 * Finds or creates the session of a run.
 * @throws RESOURCE_NOT_FOUND for an unknown agent or the id of another session, QUOTA_EXCEEDED, errors of creating a
 *   session
 */
async function openRun(request: AgUiRequest, agentId: string, input: RunInput): Promise<Run> {
  const { services, caller } = request
  const actor = actorOf(request)
  const ids = input.messages.map(({ id }) => id)
  const thread = await findThread(services.pool, {
    agent_id: agentId,
    project_id: caller.project_id,
    thread_id: input.threadId,
    run_id: input.runId,
    actor,
    message_ids: ids,
    generation_ids: ids.flatMap(id => turnOfMessage(id) ?? []),
  })
  const isOpen = caller.end_user?.agent_ids.includes(agentId) ?? true
  if (!thread || !isOpen || (caller.project_id === null && !canSeeProject(caller, thread.agent_project_id)))
    return raise(agentKind.notFound, { meta: { id: agentId } })
  await countKeyRequest(services, caller, thread.project_id)
  if (thread.session_id !== null) await requireSession(request, thread.session_id)
  const sessionId = thread.session_id ?? (await createSession(request, agentId, input.threadId, actor))
  return { request, agentId, sessionId, thread, input }
}

/** Requires that the caller may send to a session. @throws RESOURCE_NOT_FOUND, FORBIDDEN */
async function requireSession({ services, caller }: AgUiRequest, id: string): Promise<void> {
  const row = await findSession(services.pool, id)
  if (!row || (caller.end_user && !ownsSession(row, caller.end_user)))
    return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  requirePermitted(caller, 'sessions:SendSessionMessage', { kind: sessionKind, row })
}

/** Returns the refusal of a caller that has lost its permission; null for any other. */
async function lostPermission({ request, sessionId }: Run): Promise<AppError | null> {
  try {
    const caller = (await request.exchange.identify()) ?? raise('UNAUTHORIZED')
    await requireSession({ ...request, caller }, sessionId)
    return null
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return error
    throw error
  }
}

async function createSession(
  request: AgUiRequest,
  agent_id: string,
  threadId: string,
  actor: Actor | null,
): Promise<string> {
  if (threadId.startsWith('sess_')) raise('RESOURCE_NOT_FOUND', { meta: { id: threadId } })
  try {
    const { body } = await callOperation(request, 'createSession', {
      body: { agent_id, ...(actor && 'external_id' in actor && { actor: { ...actor, name: actor.external_id } }) },
      client: { session_key: THREAD_KEY_PREFIX + threadId },
    })
    return (body as { id: string }).id
  } catch (error) {
    // The agent is in the path here, not in a body.
    if (error instanceof AppError && error.code === 'AGENT_NOT_FOUND')
      raise(agentKind.notFound, { meta: { id: agent_id } })
    throw error
  }
}

/** Messages of the stream, or bytes of them. */
type Chunk = string | Buffer

/** Begins a run and returns its events as a stream of messages. */
async function runEvents(run: Run): Promise<Readable> {
  const outcome = await beginRun(run)
  const events = Readable.from(outcomeEvents(run, outcome), { objectMode: false })
  // The client may disconnect before the turn is read.
  if ('turn' in outcome) events.once('close', () => outcome.turn.stream.destroy())
  return events
}

async function* outcomeEvents(run: Run, outcome: RunOutcome): AsyncGenerator<Chunk, void> {
  const ids = { threadId: run.input.threadId, runId: run.input.runId }
  yield dataMessage(startedRun(ids))
  if ('refused' in outcome) return yield dataMessage(runError(shownError(run, outcome.refused)))
  const state = new ClientState(run.input)
  if (!run.thread.run && !replacesState(run.thread, run.input))
    for (const event of state.sync(run.thread.state)) yield dataMessage(event)
  let messages = [...run.input.messages]
  if (run.thread.lacks_history) {
    const history = await completedHistory(run)
    messages = [...history.messages]
    // A client adds messages that it lacks at the end, so that those after the first one are taken away before.
    if (history.known.length < run.input.messages.length) yield dataMessage(messagesSnapshot(history.known))
    yield dataMessage(messagesSnapshot(messages))
  }
  if ('operator' in outcome) {
    yield dataMessage({ type: 'CUSTOM', name: 'svc:operator', value: outcome.operator })
    return yield dataMessage(finishedRun(ids))
  }
  if ('turn' in outcome) {
    const { turn, unstored } = outcome
    const hasEnded = yield* turnEvents(run, ids, turn, messages, state, !unstored)
    if (unstored && !hasEnded) yield dataMessage(runError(shownError(run, unstored)))
  } else yield* continuationEvents(run, ids, outcome.decided, messages, state)
}

type Ids = { threadId: string; runId: string }

/**
 * Yields the events of a turn and adds its messages. Returns whether the run has ended with it: a turn before the last one
 * ends it by a failure only.
 */
async function* turnEvents(
  run: Run,
  ids: Ids,
  { generation_id, stream, format }: ShownTurn,
  messages: Message[],
  state: ClientState,
  isLast = true,
): AsyncGenerator<Chunk, boolean> {
  const { request, thread, sessionId } = run
  let isEnded = false
  const translation = new TurnTranslation(
    ids,
    { generation_id, detailed: seesSteps(run), labelled: request.caller.end_user !== undefined, messages },
    {
      calls: callReads(request),
      usage: usageReads(request),
      isCancelled: cancelReads(request),
      agentName: agentNameReads(request, thread.project_id),
      approvals: filed => filedApprovals(request, thread.project_id, filed),
      stateChange: change => state.change(change),
      stateAtEnd: async () =>
        thread.shared_state ? state.sync(await readState(request.services.pool, sessionId)) : [],
      stateSnapshot: async () => state.snapshot(await readState(request.services.pool, sessionId)),
    },
  )
  format.translate = async (event, data) => {
    const events = await translation.translate(event, data)
    const shown = isLast ? events : events.filter(({ type }) => type !== 'RUN_FINISHED')
    isEnded ||= shown.some(({ type }) => type === 'RUN_ERROR' || type === 'RUN_FINISHED')
    return shown
  }
  for await (const chunk of stream) yield chunk as Buffer
  return isEnded
}

/** Yields the outcomes of decided approvals and the turns that continue with them, one after the other. */
async function* continuationEvents(
  run: Run,
  ids: Ids,
  approvals: readonly string[],
  messages: Message[],
  state: ClientState,
): AsyncGenerator<Chunk, void> {
  for (const [index, id] of approvals.entries()) {
    const waiting = awaitContinuation(run, id)
    let next = await waiting.next()
    for (; !next.done; next = await waiting.next()) {
      const refusal = await lostPermission(run)
      if (refusal) return yield dataMessage(runError(shownError(run, refusal)))
      yield PING
    }
    const { generation_id, result } = next.value
    yield dataMessage(result)
    const { messageId, toolCallId, content } = result
    messages.push({ id: messageId, role: 'tool', toolCallId, content } as Message)
    if (generation_id === null) continue
    if (
      yield* turnEvents(run, ids, await attach(run, generation_id, 0), messages, state, index === approvals.length - 1)
    )
      return
  }
  yield dataMessage(finishedRun(ids))
}

const shownError = ({ request: { caller } }: Run, error: AppError): AppError =>
  caller.end_user ? endUserError(error) : error

/** Whether the caller may read turns of the project, and so sees steps and calls on the server. */
const seesSteps = ({ request: { caller }, thread: { project_id } }: Run): boolean =>
  !caller.end_user && isAllowed(caller, 'generations:GetGeneration', { kind: generationKind, project_id })
