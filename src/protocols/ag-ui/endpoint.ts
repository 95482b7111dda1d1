import { Readable } from 'node:stream'
import { dataMessage, PING } from '#core/api/event-stream.ts'
import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { anonymousBodyError } from '#core/http/body.ts'
import { type MountExchange, setServiceHeader } from '#core/http/mounts.ts'
import type { Run, ShownTurn, ThreadMount } from './call.ts'
import { capabilitiesOf } from './capabilities.ts'
import { finishedRun, messagesSnapshot, runError, startedRun, TurnTranslation } from './events.ts'
import { completedHistory } from './history.ts'
import { type Message, parseRunInput, submittedOutputs, THREAD_KEY_PREFIX } from './input.ts'
import { awaitContinuation, filedApprovals } from './interrupts.ts'
import { agentNameReads, callReads, cancelReads, usageReads } from './reads.ts'
import { attach, beginRun, type RunOutcome } from './run.ts'
import { ClientState, readState, replacesState } from './state.ts'
import { lostPermission, openRun, seesSteps, shownError } from './thread.ts'

const MOUNT: ThreadMount = { surface: 'ag_ui', keyPrefix: THREAD_KEY_PREFIX, directory: '/ag-ui', answersPartly: false }

/** Handles one request of /ag-ui/{agent_id}. */
export async function serveAgUi(services: Services, exchange: MountExchange): Promise<void> {
  const { req } = exchange
  if (!services.config.AGUI_MOUNT) raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })
  const caller = await exchange.identify()
  if (!caller) throw anonymousBodyError(req)
  const request = { services, exchange, caller, mount: MOUNT }
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

/** Messages of the stream, or bytes of them. */
type Chunk = string | Buffer

/** Begins a run and returns its events as a stream of messages. */
async function runEvents(run: Run): Promise<Readable> {
  const outcome = await beginRun(run, submittedOutputs(run.input.messages))
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
