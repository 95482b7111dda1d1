import { z } from 'zod'
import { countUpload } from '../../conversation/actors/limits.ts'
import { findByExternalId } from '../../conversation/actors/store.ts'
import { type ConversationRow, conversationKind } from '../../conversation/conversations/model.ts'
import { appendMessage } from '../../conversation/conversations/store.ts'
import { branchSession, createClientSession } from '../../conversation/sessions/create.ts'
import { ownsSession, requireNewSession, requireUsableAgent } from '../../conversation/sessions/end-user.ts'
import { findSession, sessionKind } from '../../conversation/sessions/kind.ts'
import type { SessionRow } from '../../conversation/sessions/model.ts'
import {
  findSessionByKey,
  insertSessionKey,
  moveSessionKey,
  type SessionKey,
} from '../../conversation/sessions/session-keys.ts'
import { lockSessionAndConversation, requireOpen } from '../../conversation/sessions/session-locks.ts'
import { touchSession } from '../../conversation/sessions/store.ts'
import { turnContext, turnInput } from '../../conversation/sessions/turns.ts'
import { enqueueTurn, findMailboxState } from '../../conversation/turns/mailbox.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { type Context, itemOperation, type OperationResult, operation, result } from '../../core/api/operation.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import { canSeeProject } from '../../core/iam/access.ts'
import { type EndUser, principalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { type AgentRow, agentKind, findAgent } from '../../execution/agents/model.ts'
import { type GenerationRow, generationKind } from '../../execution/generations/model.ts'
import { admitTurn, consumeShareForTurn } from '../../execution/generations/request/admission.ts'
import { createTurn, createTurnInOneStatement, type TurnInput } from '../../execution/generations/request/create.ts'
import { findRunnableAgent, type RunnableAgent } from '../../execution/generations/request/create-store.ts'
import { admitFiles } from '../../execution/generations/request/message-files.ts'
import { type SubmitResponse, submitToolOutputs } from '../../execution/generations/request/tool-outputs.ts'
import { subscribeTurn, type TurnEndState } from '../../execution/generations/request/wait-for-turn.ts'
import { listVoidTexts } from '../../execution/generations/streams/frame-store.ts'
import { streamTurn } from '../../execution/generations/streams/stream.ts'
import { requireContext } from '../../execution/generations/tools/toolbox.ts'
import type { AttachedFile, ModelMessage } from '../../execution/providers/model-messages.ts'
import { turnSettingsOf } from './agent-request.ts'
import { type Alignment, alignTexts, listStoredTexts, type Spoken, spokenTexts } from './align.ts'
import type { ClientChatRequest } from './client-request.ts'
import { UnrepeatableTurnError } from './error-body.ts'
import { awaitFirstChunk, startingWithText } from './first-chunk.ts'
import { type EndUserRef, requireActor } from './identity.ts'
import { modelNotFound } from './models.ts'
import { findPausedTurn, trailingResults } from './paused-turn.ts'
import { SEND_ACTION } from './session.ts'
import { readTurnAnswer } from './turn-answer.ts'
import { type TurnChunks, turnFormat } from './turn-format.ts'
import { findTurnRequest, type RequestIdentity, recordTurnRequest, type TurnRequest } from './turn-requests.ts'

/** Turns of agents: outside of sessions, in ephemeral sessions of an end user, and in sessions found by a key. */

/** What a turn did besides its answer. */
export type TurnReport = { session_id: string | null; ignored: string[] }

export type AgentTurnCall = {
  agent_id: string
  /** Text that the user adds, by which limits count it. */
  message: string
  request: ClientChatRequest
  isEndUser: boolean
  end_user: EndUserRef | null
  /** Key of the conversation; null for a single turn. */
  key: string | null
  /** Whether the request contains only additions to the conversation, not its history. */
  appends: boolean
  identity: RequestIdentity
  /** Whether the client repeats a request, which then attaches to its turn. */
  isRetry: boolean
  /** Formats a stream; null for the answer as the body of the result. `state.started` is set with the first bytes. */
  stream: ((generationId: string, state: { started: boolean }, afterStep: number) => TurnChunks) | null
  /** Whether the content of the turn is stored. */
  store: boolean
  /** Whether the response does not wait for the turn. */
  background: boolean
  report: TurnReport
}

const callFields: (keyof AgentTurnCall)[] = [
  ...(['agent_id', 'message', 'request', 'isEndUser', 'end_user'] as const),
  ...(['key', 'appends', 'identity', 'isRetry', 'stream', 'store', 'background', 'report'] as const),
]

type TurnContext = Pick<
  Context<unknown, AgentTurnCall>,
  'services' | 'caller' | 'body' | 'allow' | 'audit' | 'request' | 'recheck' | 'record' | 'client'
>

/** A turn outside of sessions. */
export const agentTurnOperation = itemOperation(agentKind, {
  id: 'createOpenAiAgentTurn',
  method: 'post',
  path: '/openai/v1/agents/{agent_id}',
  summary: 'Run an agent',
  tag: 'OpenAI',
  action: 'agents:CreateAgentGeneration',
  alsoActions: ['files:DownloadFile'],
  find: (db, id) => findRunnableAgent(db, id),
  body: z.custom<AgentTurnCall>(),
  answers: { 200: null },
  granted: true,
  transaction: false,
  run: runWithoutSession,
})

/** A turn of an end user, or of a conversation of a client. */
export const sessionTurnOperation = operation({
  id: 'createOpenAiSessionTurn',
  method: 'post',
  path: '/openai/v1/sessions',
  summary: 'Run an agent in a session',
  tag: 'OpenAI',
  action: SEND_ACTION,
  alsoActions: ['actors:CreateActor', 'files:DownloadFile'],
  about: sessionKind,
  body: z.custom<AgentTurnCall>(),
  answers: { 200: null },
  endUser: {
    scope: 'chat',
    fields: callFields,
    sends: true,
    streams: ({ stream }) => stream !== null,
    presented: true,
  },
  transaction: false,
  run: runInSession,
})

async function runWithoutSession(
  context: Context<Record<string, never>, AgentTurnCall, AgentRow>,
): Promise<OperationResult> {
  const { services, caller, body } = context
  const { request } = body
  const project_id = context.project as string
  const agent = context.resource as RunnableAgent
  const attached = await attachToTurn(context)
  if (attached) return attached
  const paused = await findPausedTurn(
    services.pool,
    { agent_id: agent.id, project_id, actor_id: null, caller },
    trailingResults(request.messages),
  )
  if (paused) return resumeTurn(context, paused)
  await requireContext(services, agent, null)
  await admitFiles(services.pool, context, project_id, request.messages)
  const { ignored, ...settings } = turnSettingsOf(agent, request, body.isEndUser)
  Object.assign(body.report, { ignored })
  return respondWithNewTurn(context, generation_id => {
    const input: TurnInput = {
      generation_id,
      project_id,
      agent_id: agent.id,
      agent_version: agent.version,
      messages: request.messages,
      ...settings,
      authority: principalRecord(caller),
      streamed: body.stream !== null || body.background,
      shape: 'agent',
      unstored: !body.store,
    }
    const addWrites = (outbox: Outbox) => recordTurn(context, outbox, { generation_id, after_step: 0, after_frame: 0 })
    if (!context.grant) return createTurnInOneStatement(services, input, agent, addWrites)
    return services.write(async tx => {
      await consumeShareForTurn(tx, services, project_id, agent)
      const made = await createTurn(tx, services, input)
      addWrites(tx)
      return made
    })
  })
}

async function runInSession(context: Context<Record<string, never>, AgentTurnCall>): Promise<OperationResult> {
  const { services, caller, body } = context
  const { agent_id, request, end_user } = body
  const project_id = context.project ?? (await projectOf(context, agent_id))
  Object.assign(context.audit, { project_id })
  const attached = await attachToTurn(context)
  if (attached) return attached
  const outputs = trailingResults(request.messages)
  if (outputs.length > 0) {
    const actor_id = await findActorId(context, project_id, end_user)
    const owner = { agent_id, project_id, actor_id: actor_id ?? null, caller }
    const paused = actor_id === undefined ? null : await findPausedTurn(services.pool, owner, outputs)
    if (paused) return resumeTurn(context, paused)
  }
  if (body.key === null) await admitFiles(services.pool, context, project_id, request.messages)
  if (caller.end_user) await countAttachments(services, caller.end_user, request.messages)
  return respondWithNewTurn(context, async generation_id => {
    const made = await services.write(async tx => {
      const actor_id = await requireActor(tx, context, project_id, end_user)
      const turn = { generation_id, project_id, actor_id }
      const ids =
        (body.key !== null && (await enqueueInConversation(tx, context, { ...turn, key: body.key }))) ||
        (await createEphemeralTurn(tx, context, turn))
      if ('operator' in ids) return ids
      recordTurn(context, tx, { generation_id, after_step: 0, after_frame: 0 })
      return ids
    })
    if ('operator' in made) raise('SESSION_UNDER_OPERATOR', { meta: made.operator })
    return made
  })
}

/** Counts the bytes that an end user sends within messages. Raises ACTOR_LIMIT_EXCEEDED. */
async function countAttachments(
  services: Services,
  endUser: EndUser,
  messages: readonly ModelMessage[],
): Promise<void> {
  const parts = messages.flatMap(({ role, content }) => (role === 'user' && typeof content !== 'string' ? content : []))
  const bytes = parts.reduce((sum, part) => sum + (part.type === 'attachment' ? attachedBytes(part) : 0), 0)
  if (bytes > 0) await countUpload(services, endUser, bytes)
}

const attachedBytes = ({ data_base64 }: AttachedFile): number => Math.floor((data_base64.length * 3) / 4)

/** Returns the project of an agent for a credential without a project. @throws RESOURCE_NOT_FOUND */
async function projectOf({ services, caller }: TurnContext, agentId: string): Promise<string> {
  const agent = await findAgent(services.pool, agentId)
  if (!agent || !canSeeProject(caller, agent.project_id)) throw modelNotFound(agentId)
  return agent.project_id
}

/** Returns the ID of the end user; undefined if there is none yet with this external ID. */
async function findActorId(
  { services }: TurnContext,
  projectId: string,
  endUser: EndUserRef | null,
): Promise<string | null | undefined> {
  if (endUser === null) return null
  if ('actor_id' in endUser) return endUser.actor_id
  return (await findByExternalId(services.pool, projectId, endUser.external_id))?.id
}

type NewTurn = { generation_id: string; project_id: string; actor_id: string | null }
type Ids = { generation_id: string; trace_id: string }

/** A session whose messages an operator answers: the message is stored, and no turn runs. */
type UnderOperator = { operator: { session_id: string; assigned_to: string | null } }

/** Creates a turn over the messages of the request, in a session that holds its end user. */
async function createEphemeralTurn(tx: Tx, context: TurnContext, turn: NewTurn): Promise<Ids> {
  const { services, caller, body } = context
  const { project_id, actor_id, generation_id } = turn
  context.allow(SEND_ACTION, { kind: sessionKind, project_id })
  if (caller.end_user) requireUsableAgent(caller.end_user, body.agent_id)
  const agent = await admitTurn(tx, services, { project_id, agent_id: body.agent_id, actor_id })
  const { session } = await createClientSession(tx, agent, { project_id, actor_id, ephemeral: true })
  return createTurn(tx, services, {
    ...sessionTurnInput(context, session, agent, generation_id),
    agent_version: agent.version,
    conversation_id: null,
    messages: body.request.messages,
  })
}

/** Returns the input of a turn of a session, with the additions of the request, which the response names. */
function sessionTurnInput({ body, caller }: TurnContext, session: SessionRow, agent: AgentRow, generation_id: string) {
  const { ignored, ...settings } = turnSettingsOf(agent, body.request, body.isEndUser)
  Object.assign(body.report, { ignored, session_id: session.id })
  return turnInput(session, principalRecord(caller), {
    generation_id,
    tool_context: turnContext(session, null),
    streamed: body.stream !== null || body.background,
    origin: null,
    shape: 'agent',
    unstored: !body.store,
    ...settings,
  })
}

type Located = { session: SessionRow; conversation: ConversationRow; added: string[]; history: Spoken[] }

/**
 * Continues the conversation of a key with a turn; null for a question outside the conversation. All is decided under
 * the lock of the conversation, so that one of two concurrent requests runs. Under an operator the texts are stored, and
 * the refusal is returned.
 * @throws GENERATION_ALREADY_IN_PROGRESS, SESSION_CLOSED, SESSION_EXPIRED
 */
async function enqueueInConversation(
  tx: Tx,
  context: TurnContext,
  { generation_id, project_id, actor_id, key }: NewTurn & { key: string },
): Promise<Ids | UnderOperator | null> {
  const { services, body, audit } = context
  const ref: SessionKey = { project_id, agent_id: body.agent_id, actor_id, key }
  const spoken = spokenTexts(body.request.messages)
  const found = isIdOf(conversationKind, key) ? await requireSessionOf(tx, ref) : await findSessionByKey(tx, ref)
  const located = found ? await locate(tx, context, ref, found, spoken) : await createForKey(tx, context, ref, spoken)
  if (!located) return null
  const { session, conversation, added, history } = located
  Object.assign(audit, { resource_public_id: session.id })
  const isWithOperator = session.control === 'operator'
  const agent = isWithOperator ? null : await admitTurn(tx, services, { ...session, session_id: session.id })
  for (const { role, text } of history) await append(tx, conversation, session, { role, text, origin: 'system' })
  for (const text of added) await append(tx, conversation, session, { role: 'user', text, origin: 'end_user' })
  const isEmpty = conversation.message_count + added.length + history.length === 0
  if (isEmpty) raiseInvalid({ code: 'REQUIRED', path: 'messages', message: 'must contain a text of the user' })
  touchSession(tx, session.id)
  if (!agent) return { operator: { session_id: session.id, assigned_to: session.assigned_to } }
  return enqueueTurn(tx, services, conversation, {
    kind: 'turn',
    input: sessionTurnInput(context, session, agent, generation_id),
  })
}

const append = (
  tx: Tx,
  conversation: ConversationRow,
  { actor_id, agent_id }: SessionRow,
  { role, text, origin }: Spoken & { origin: 'system' | 'end_user' },
) =>
  appendMessage(tx, conversation, {
    role,
    origin,
    content: text,
    ...(role === 'user' ? { actor_id } : { actor_id: null, agent_id }),
  })

/** Creates the session of a new key, with the texts of the request before the last one of the user as its history. */
async function createForKey(
  tx: Tx,
  { body, allow, caller }: TurnContext,
  key: SessionKey,
  spoken: readonly Spoken[],
): Promise<Located> {
  const { project_id, agent_id, actor_id } = key
  allow(SEND_ACTION, { kind: sessionKind, project_id })
  if (caller.end_user) await requireNewSession(tx, caller.end_user, agent_id)
  const agent = await requireAgent(tx, key)
  const { session, conversation } = await createClientSession(tx, agent, { project_id, actor_id })
  // A concurrent request has created the session: the client repeats this one.
  if (!(await insertSessionKey(tx, key, session.id)))
    raise('GENERATION_ALREADY_IN_PROGRESS', { message: 'Another request has created the session', meta: { agent_id } })
  body.report.session_id = session.id
  const aligned = alignTexts(spoken, [])
  const { history, added } = aligned.type === 'import' ? aligned : { history: [], added: textsOfUser(spoken) }
  return { session, conversation, history, added }
}

const textsOfUser = (spoken: readonly Spoken[]): string[] =>
  spoken.filter(({ role }) => role === 'user').map(({ text }) => text)

/** Returns the agent of a new session. @throws RESOURCE_NOT_FOUND */
async function requireAgent(tx: Tx, { agent_id }: SessionKey): Promise<AgentRow> {
  const agent = await findAgent(tx, agent_id)
  if (!agent) throw modelNotFound(agent_id)
  return agent
}

/** Returns the session of a conversation by its ID. @throws RESOURCE_NOT_FOUND unless agent and end user are its own */
async function requireSessionOf(tx: Tx, { key, project_id, agent_id, actor_id }: SessionKey): Promise<SessionRow> {
  const conversation = await conversationKind.find(tx, key)
  const session = conversation?.session_id ? await findSession(tx, conversation.session_id) : null
  const isOwn = session?.project_id === project_id && session.agent_id === agent_id && session.actor_id === actor_id
  if (!session || !isOwn) return raise('RESOURCE_NOT_FOUND', { meta: { id: key, param: 'conversation' } })
  return session
}

/** Aligns a request with the session of its key, which may move the key to a fork or to a new session. */
async function locate(
  tx: Tx,
  context: TurnContext,
  key: SessionKey,
  found: SessionRow,
  spoken: readonly Spoken[],
): Promise<Located | null> {
  const { end_user } = context.caller
  context.allow(SEND_ACTION, { kind: sessionKind, row: found })
  if (end_user && !ownsSession(found, end_user)) throw modelNotFound(key.agent_id)
  const { session, conversation } = await lockSessionAndConversation(tx, found)
  const current = isIdOf(conversationKind, key.key) ? found : await findSessionByKey(tx, key)
  // Its end user has deleted the session meanwhile: the client repeats the request.
  if (!current)
    return raise('GENERATION_ALREADY_IN_PROGRESS', {
      message: 'The session of this key was deleted; repeat the request',
    })
  if (current.id !== found.id) return locate(tx, context, key, current, spoken)
  requireOpen(session)
  const aligned: Alignment = context.body.appends
    ? { type: 'append', added: textsOfUser(spoken) }
    : alignTexts(spoken, await listStoredTexts(tx, conversation.id))
  if (aligned.type === 'ephemeral') return null
  if (session.control === 'operator') return { session, conversation, added: aligned.added, history: [] }
  await requireIdle(tx, conversation.id)
  const { added } = aligned
  if (aligned.type === 'append') return { session, conversation, added, history: [] }
  const agent = await requireAgent(tx, key)
  if (end_user) await requireNewSession(tx, end_user, key.agent_id)
  if (aligned.type === 'fork') {
    const fork = await branchSession(tx, session, agent, aligned.position)
    await moveSessionKey(tx, key, fork.session.id)
    return { ...fork, added, history: [] }
  }
  const { project_id, actor_id } = key
  const made = await createClientSession(tx, agent, { project_id, actor_id })
  await moveSessionKey(tx, key, made.session.id)
  return { ...made, added, history: aligned.history }
}

/** @throws GENERATION_ALREADY_IN_PROGRESS while a turn is open */
async function requireIdle(tx: Tx, conversationId: string): Promise<void> {
  const { running, queued } = await findMailboxState(tx, conversationId)
  const first = running ?? queued[0]
  if (first) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: first.generation_id } })
}

/** Writes the audit entry of the request and what a retry of it attaches to. */
function recordTurn(context: TurnContext, outbox: Outbox, turn: TurnRequest): void {
  context.record(outbox, 200, { made: { generation_id: turn.generation_id } })
  recordTurnRequest(outbox, context.body.identity, turn)
}

/** Creates a turn and responds with its answer, as a whole or as a stream. */
async function respondWithNewTurn(
  context: TurnContext,
  make: (generationId: string) => Promise<Ids>,
): Promise<OperationResult> {
  return presentTurn(context, newId(generationKind.prefix), 0, async generation_id => {
    await make(generation_id)
    return 0
  })
}

/**
 * Responds with the answer of a turn.
 * @param make creates or resumes the turn after the subscription to its end, and returns the frames before the request;
 *   for an existing turn these frames
 */
async function presentTurn(
  context: TurnContext,
  generationId: string,
  afterStep: number,
  make: ((generationId: string) => Promise<number>) | { after_frame: number },
): Promise<OperationResult> {
  const { services, body, request } = context
  const model = body.request.model
  const presented = { generation_id: generationId, model, afterStep }
  const isNew = typeof make === 'function'
  if (body.stream) {
    const after = isNew ? await make(generationId) : make.after_frame
    const state = { started: false }
    const voids = isNew ? [] : await listVoidTexts(services.pool, generationId)
    const chunks = startingWithText(body.stream(generationId, state, afterStep), state)
    const format = turnFormat(chunks, { ...presented, voids })
    const streamed = streamTurn(context, { id: generationId }, after, format)
    await awaitFirstChunk(streamed.stream ?? raise('INTERNAL_ERROR'))
    state.started = true
    return streamed
  }
  if (body.background && isNew) {
    await make(generationId)
    return result(200, { queued: generationId })
  }
  const subscription = subscribeTurn(services, generationId)
  try {
    if (isNew) await make(generationId)
  } catch (error) {
    subscription.cancel()
    throw error
  }
  const ended = await subscription.wait({ closed: request.closed, ...(isNew && { running: true as const }) })
  return result(200, await readTurnAnswer(services, requireEnded(ended, generationId), { model, afterStep }))
}

/** Returns a turn that ended within the wait. The turn of another continues: its request must not be repeated. */
const requireEnded = (ended: TurnEndState | null, generation_id: string): TurnEndState => {
  if (ended) return ended
  throw new UnrepeatableTurnError('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id } })
}

/** Requires that the caller may send to the session of a turn. @throws RESOURCE_NOT_FOUND, FORBIDDEN */
async function requireTurn({ services, allow, caller }: TurnContext, { session_id, agent_id }: GenerationRow) {
  const session = session_id === null ? null : await findSession(services.pool, session_id)
  if (session) allow(SEND_ACTION, { kind: sessionKind, row: session })
  const { end_user } = caller
  if (end_user && !(session && ownsSession(session, end_user))) throw modelNotFound(agent_id)
}

/** Submits the results of the client's tools and responds with the rest of the turn. */
async function resumeTurn(context: TurnContext, generation: GenerationRow): Promise<OperationResult> {
  const { body } = context
  const { session_id, project_id, step_count } = generation
  await requireTurn(context, generation)
  body.report.session_id = session_id
  Object.assign(context.audit, { project_id })
  // The paused step has been presented already.
  const afterStep = step_count + 1
  const respond: SubmitResponse['respond'] = (_context, _mode, make) =>
    presentTurn(context, generation.id, afterStep, async id => (await make(id)).frames ?? 0)
  const record: TurnContext['record'] = (outbox, status, effect) => {
    context.record(outbox, status, effect)
    const frames = 'made' in effect ? (effect.made as { frames?: number }).frames : 0
    const turn = { generation_id: generation.id, after_step: afterStep, after_frame: frames ?? 0 }
    recordTurnRequest(outbox, body.identity, turn)
  }
  return submitToolOutputs(
    { ...context, record, query: { wait: true } },
    generation,
    { tool_outputs: trailingResults(body.request.messages), stream: body.stream !== null },
    {},
    { respond, streamsObjects: true },
  )
}

/** Responds to a repeated request with its turn; null if there is none, or if it failed before any tool call. */
async function attachToTurn(context: TurnContext): Promise<OperationResult | null> {
  const { services, body } = context
  const found = body.isRetry ? await findTurnRequest(services.pool, body.identity) : null
  const turn = found && (await generationKind.find(services.pool, found.generation_id))
  if (!found || !turn || (turn.status === 'failed' && turn.step_count === 0)) return null
  await requireTurn(context, turn)
  body.report.session_id = turn.session_id
  return presentTurn(context, turn.id, found.after_step, found)
}
