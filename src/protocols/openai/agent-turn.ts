import { z } from 'zod'
import { findByExternalId } from '#conversation/actors/store.ts'
import { enqueueTurn } from '#conversation/dialog/mailbox/mailbox.ts'
import { requireUsableAgent } from '#conversation/sessions/end-user.ts'
import { sessionKind } from '#conversation/sessions/kind.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import type { SessionKey } from '#conversation/sessions/session-keys.ts'
import { touchSession } from '#conversation/sessions/store.ts'
import { turnContext } from '#conversation/sessions/turn-context.ts'
import { turnInput } from '#conversation/sessions/turns.ts'
import { canSeeProject } from '#core/api/access.ts'
import { type Context, itemOperation, type OperationResult, operation } from '#core/api/operation.ts'
import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { type AgentRow, agentKind, findAgent } from '#execution/agents/model.ts'
import { admitTurn } from '#execution/generations/request/admission.ts'
import { cachedAgents, createRequestedTurn, withCurrentAgent } from '#execution/generations/request/cached-agents.ts'
import { createTurn } from '#execution/generations/request/create.ts'
import { findRunnableAgent, type RunnableAgent } from '#execution/generations/request/create-store.ts'
import { requireContext } from '#execution/generations/tools/toolbox.ts'
import { turnSettingsOf } from './agent-request.ts'
import { spokenTexts } from './align.ts'
import { admitMedia, markMedia } from './client-media.ts'
import { limitHistory } from './history-limit.ts'
import { type EndUserRef, requireActor } from './identity.ts'
import {
  findPreviousSession,
  type LocatedSession,
  locateByKey,
  locateByResponse,
  locateEphemeral,
} from './locate-session.ts'
import { modelNotFound } from './models.ts'
import { findPausedTurn, trailingResults } from './paused-turn.ts'
import { SEND_ACTION } from './session.ts'
import { admitSessionMedia, type SessionMedia } from './session-media.ts'
import { storeMessage } from './stored-media.ts'
import { type AgentTurnCall, callFields, type NewTurn, type TurnContext, type TurnIds } from './turn-call.ts'
import { attachToTurn, recordTurn, respondWithNewTurn, resumeTurn } from './turn-response.ts'

/** Turns of agents: outside of sessions, in ephemeral sessions of an end user, and in the sessions of conversations. */

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
  cache: cachedAgents,
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
  alsoActions: ['actors:CreateActor', 'files:DownloadFile', 'files:UploadFile'],
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

type AgentContext = Context<Record<string, never>, AgentTurnCall, AgentRow>

async function runWithoutSession(context: AgentContext): Promise<OperationResult> {
  const { services, caller, body, resource } = context
  const project_id = context.project as string
  const results = trailingResults(body.request.messages)
  // Only the creation of a turn detects that a cached agent has changed.
  if ((resource as RunnableAgent).cached && (body.isRetry || results.length > 0)) await context.recheck()
  const attached = await attachToTurn(context)
  if (attached) return attached
  const paused = await findPausedTurn(
    services.pool,
    { agent_id: resource.id, project_id, actor_id: null, caller },
    results,
  )
  if (paused) return resumeTurn(context, paused)
  return respondWithNewTurn(context, generation_id =>
    withCurrentAgent(context, agent => startTurn(context, agent, generation_id)),
  )
}

/** Checks a request outside of sessions and creates its turn. */
async function startTurn(context: AgentContext, agent: RunnableAgent, generation_id: string): Promise<TurnIds> {
  const { services, caller, body } = context
  const { request } = body
  const project_id = context.project as string
  await requireContext(services, agent, null)
  const messages = await admitMedia(context, project_id, agent, request.messages)
  const { ignored, ...settings } = turnSettingsOf(agent, request, body.isEndUser)
  Object.assign(body.report, { ignored })
  const turn = {
    generation_id,
    project_id,
    messages,
    ...settings,
    authority: principalRecord(caller),
    streamed: body.stream !== null || body.background,
    patience: body.background ? undefined : ('none' as const),
    awaited: body.stream === null && !body.background,
    unstored: !body.store,
  }
  const addWrites = (outbox: Outbox) => recordTurn(context, outbox, { generation_id, after_step: 0, after_frame: 0 })
  const isLocal = body.stream !== null || !body.background
  return createRequestedTurn(context, agent, turn, { isLocal, addWrites })
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
  const previous = body.previous && (await findPreviousSession(services.pool, body.previous, agent_id))
  const media = await admitSessionMedia(context, project_id, previous, () => findActorId(context, project_id, end_user))
  return respondWithNewTurn(context, async generation_id => {
    try {
      const made = await services.write(async tx => {
        const actor_id = await requireActor(tx, context, project_id, end_user)
        const ids = await createSessionTurn(tx, context, { generation_id, project_id, actor_id }, { previous, media })
        if ('operator' in ids) return ids
        recordTurn(context, tx, { generation_id, after_step: 0, after_frame: 0 })
        return ids
      })
      if ('operator' in made) raise('SESSION_UNDER_OPERATOR', { meta: made.operator })
      return made
    } catch (error) {
      // An agent of another project is refused like an unknown agent.
      throw error instanceof AppError && error.code === 'AGENT_NOT_FOUND' ? modelNotFound(agent_id) : error
    } finally {
      await media.discard()
    }
  })
}

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

/** A session whose messages an operator answers: the message is stored, and no turn runs. */
type UnderOperator = { operator: { session_id: string; assigned_to: string | null } }

type SessionRequest = { previous: SessionRow | null; media: SessionMedia }

/** Creates a turn in the session that the request continues, else in an ephemeral one. */
async function createSessionTurn(
  tx: Tx,
  context: TurnContext,
  turn: NewTurn,
  request: SessionRequest,
): Promise<TurnIds | UnderOperator> {
  const located = await locateSession(tx, context, turn, request)
  return located
    ? enqueueInSession(tx, context, turn.generation_id, located)
    : createEphemeralTurn(tx, context, turn, request)
}

/** Returns the session of the previous response or of the key; null for a turn outside conversations. */
async function locateSession(
  tx: Tx,
  context: TurnContext,
  { project_id, actor_id }: NewTurn,
  { previous, media: { messages, stored } }: SessionRequest,
): Promise<LocatedSession | null> {
  const { body } = context
  const key: SessionKey | null =
    body.key === null ? null : { project_id, agent_id: body.agent_id, actor_id, key: body.key }
  if (body.previous && previous && !previous.ephemeral) {
    const spoken = spokenTexts(messages.slice(body.previous.message_count), stored)
    return locateByResponse(tx, context, previous, body.previous, { spoken, key })
  }
  return key && !previous ? locateByKey(tx, context, key, spokenTexts(messages, stored)) : null
}

/**
 * Stores the additions of a request in its session and enqueues a turn. Under an operator the texts are stored, and the
 * refusal is returned.
 */
async function enqueueInSession(
  tx: Tx,
  context: TurnContext,
  generation_id: string,
  { session, conversation, added, history }: LocatedSession,
): Promise<TurnIds | UnderOperator> {
  const { services, audit } = context
  Object.assign(audit, { resource_public_id: session.id })
  const isWithOperator = session.control === 'operator'
  const agent = isWithOperator ? null : await admitTurn(tx, services, { ...session, session_id: session.id })
  for (const spoken of history) await storeMessage(tx, services, conversation, session, spoken, 'system')
  for (const spoken of added) await storeMessage(tx, services, conversation, session, spoken, 'end_user')
  const isEmpty = conversation.message_count + added.length + history.length === 0
  if (isEmpty) raiseInvalid({ code: 'REQUIRED', path: 'messages', message: 'must contain a text of the user' })
  touchSession(tx, session.id)
  if (!agent) return { operator: { session_id: session.id, assigned_to: session.assigned_to } }
  return enqueueTurn(tx, services, conversation, {
    kind: 'turn',
    input: sessionTurnInput(context, session, agent, generation_id),
  })
}

/** Creates a turn over the messages of the request, in a session that holds its end user. */
async function createEphemeralTurn(
  tx: Tx,
  context: TurnContext,
  { generation_id, ...owner }: NewTurn,
  { previous, media: { messages } }: SessionRequest,
): Promise<TurnIds> {
  const { services, caller, body } = context
  const { project_id, actor_id } = owner
  context.allow(SEND_ACTION, { kind: sessionKind, project_id })
  if (caller.end_user) requireUsableAgent(caller.end_user, body.agent_id)
  await limitHistory(tx, caller, body.agent_id, spokenTexts(messages.slice(body.previous?.message_count ?? 0)))
  const agent = await admitTurn(tx, services, { project_id, agent_id: body.agent_id, actor_id })
  const generation = body.previous?.generation
  const session = await locateEphemeral(
    tx,
    context,
    agent,
    owner,
    previous && generation ? { session: previous, generation } : null,
  )
  return createTurn(tx, services, {
    ...sessionTurnInput(context, session, agent, generation_id),
    agent_version: agent.version,
    conversation_id: null,
    messages: markMedia(messages),
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
    patience: body.background ? undefined : 'none',
    awaited: body.stream === null && !body.background,
    origin: null,
    shape: 'agent',
    unstored: !body.store,
    ...settings,
  })
}
