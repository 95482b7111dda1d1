import type { z } from 'zod'
import { actorKind } from '#conversation/actors/model.ts'
import { turnContext } from '#conversation/sessions/turn-context.ts'
import type { Made } from '#core/api/idempotency.ts'
import { isIdOf } from '#core/api/kind.ts'
import type { Context, OperationResult } from '#core/api/operation.ts'
import { callerContext } from '#core/api/tool-context.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { checkOverlay } from '#execution/agents/knowledge.ts'
import { admitTurn } from '#execution/generations/request/admission.ts'
import type { Mailboxes } from '#execution/generations/request/cancel-turn.ts'
import { nestedTurnFields } from '#execution/generations/request/create.ts'
import {
  createdStatus,
  type ResponseMode,
  replayTurnResponse,
  respondWithTurn,
  responseMode,
  waitOf,
} from '#execution/generations/request/respond.ts'
import type { ConversationRow, GenerateMessageInput } from '../messages/model.ts'
import { appendMessage, lockConversation } from '../messages/store.ts'
import { createChatTurn, respondWithChatTurn } from './create-chat-turn.ts'
import {
  endCancelledTurns,
  enqueueTurn,
  findMailboxState,
  refuseSelfWait,
  requireAnsweringSession,
  requireOpenSession,
} from './mailbox.ts'
import { findSpeaker } from './store.ts'

type Body = z.output<typeof GenerateMessageInput>
type GenerateContext = Context<{ wait?: boolean }, Body, ConversationRow>

/**
 * Generates a reply: checks all possible refusals, enqueues the turn in the conversation's mailbox, and responds with
 * its ids, its result or its stream. A disconnect does not affect the turn.
 * @throws AGENT_NOT_FOUND, ACTOR_NOT_FOUND, PROJECT_PAUSED, SESSION_CLOSED, SESSION_EXPIRED, SESSION_UNDER_OPERATOR,
 *   GENERATION_ALREADY_IN_PROGRESS; with `wait` the failure of the turn
 */
export async function generateInConversation(context: GenerateContext): Promise<OperationResult> {
  const { body, query, services, resource } = context
  const mode = responseMode(body.stream, query.wait)
  refuseSelfWait(context.origin, resource.id)
  const requestContext = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  const chatId = await findAnsweringChat(context)
  if (chatId !== null) {
    if (body.knowledge_config)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'knowledge_config', message: 'is allowed only for agents' })
    return createChatTurn(context, mode, chatId)
  }
  return respondWithTurn(context, mode, async generation_id => {
    const { trace_id } = await services.write(async tx => {
      const turn = await createAgentTurn(tx, context, { generation_id, mode, requestContext })
      context.record(tx, createdStatus(mode), { made: { generation_id } })
      return turn
    })
    return { conversation_id: resource.id, generation_id, trace_id }
  })
}

/** Responds to a repeated request whose first response was lost. */
export async function replayGenerate(context: GenerateContext, made: Made): Promise<OperationResult> {
  const { body, query, resource } = context
  const mode = responseMode(body.stream, query.wait)
  if (typeof made.seq === 'number')
    return respondWithChatTurn(context, mode, { conversation_id: resource.id, seq: made.seq })
  return replayTurnResponse(context, mode, made, { conversation_id: resource.id })
}

async function createAgentTurn(
  tx: Tx,
  { allow, body, caller, services, resource, origin }: GenerateContext,
  turn: { generation_id: string; mode: ResponseMode; requestContext: Record<string, string> | null },
) {
  const { project_id } = resource
  const agent_id = await requireAnsweringAgent(tx, project_id, body)
  const { id: conversation_id, session_id } = resource
  const actor_id = session_id === null ? null : resource.actor_id
  const agent = await admitTurn(tx, services, { project_id, agent_id, actor_id, session_id, conversation_id })
  if (turn.mode === 'stream' && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  const conversation = await lockConversation(tx, resource.id)
  if (!conversation) raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
  const session = conversation.session_id === null ? null : await requireSessionOfAgent(tx, conversation, agent_id)
  if (conversation.message_count === 0)
    raiseInvalid({ code: 'INVALID_VALUE', path: '', message: `conversation ${resource.id} has no messages` })
  if (body.knowledge_config)
    await checkOverlay({ tx, allow }, agent, project_id, body.knowledge_config, session?.knowledge_config)
  if (session) await replaceAutoTurn(tx, services, conversation)
  return enqueueTurn(tx, services, conversation, {
    kind: 'turn',
    speaker_actor_id: body.actor_id ?? null,
    input: {
      generation_id: turn.generation_id,
      project_id,
      agent_id,
      messages: null,
      model: body.model ?? null,
      overrides: body.knowledge_config ? { knowledge_config: body.knowledge_config } : {},
      tool_context: session ? turnContext(session, turn.requestContext) : turn.requestContext,
      actor_id: session?.actor_id ?? null,
      authority: principalRecord(caller),
      permission: {
        action: 'conversations:GenerateConversationMessage',
        kind: 'conversation',
        id: conversation.id,
      },
      streamed: turn.mode === 'stream',
      ...waitOf(turn.mode),
      shape: 'conversation',
      ...nestedTurnFields(origin),
    },
  })
}

/**
 * Checks that no turn of the session is running or due, and cancels an automatic turn that waits, because the new turn
 * replaces it.
 * @throws GENERATION_ALREADY_IN_PROGRESS
 */
async function replaceAutoTurn(tx: Tx, services: Services, conversation: ConversationRow): Promise<void> {
  const { running, queued } = await findMailboxState(tx, conversation.id)
  const busy = running ?? queued.find(turn => turn.due)
  if (busy) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: busy.generation_id } })
  await endCancelledTurns(
    tx,
    services,
    queued.filter(turn => turn.kind === 'auto'),
  )
}

/** Enqueues a retry of a failed turn as a new turn at the end of the mailbox, with the same speaker. */
export const enqueueRetry: Mailboxes['retry'] = async (tx, services, failed, input) => {
  const conversation = await lockConversation(tx, failed.conversation_id as string)
  if (!conversation) return raise('RESOURCE_NOT_FOUND', { meta: { id: failed.conversation_id } })
  const session = await requireAnsweringSession(tx, conversation)
  if (session) await replaceAutoTurn(tx, services, conversation)
  return enqueueTurn(tx, services, conversation, {
    kind: 'turn',
    speaker_actor_id: await findSpeaker(tx, failed.id),
    input: {
      ...input,
      messages: null,
      tool_context: session && turnContext(session, null),
      actor_id: session?.actor_id ?? null,
    },
  })
}

/**
 * Enqueues a turn that continues an earlier one: appends the opening as a message without an author, answered by the
 * speaker of the earlier turn.
 */
export const enqueueContinuation: Mailboxes['continue'] = async (tx, services, conversationId, opening, input) => {
  const conversation = await lockConversation(tx, conversationId)
  if (!conversation) return raise('RESOURCE_NOT_FOUND', { meta: { id: conversationId } })
  const session = await requireOpenSession(tx, conversation)
  await appendMessage(tx, conversation, { role: 'user', origin: 'approval', content: opening, actor_id: null })
  return enqueueTurn(tx, services, conversation, {
    kind: 'continuation',
    speaker_actor_id: input.initiator_generation_id ? await findSpeaker(tx, input.initiator_generation_id) : null,
    input: { ...input, messages: null, actor_id: session?.actor_id ?? null, shape: 'conversation' },
  })
}

/** Returns the chat linked to the speaking actor; null if an agent answers. @throws ACTOR_NOT_FOUND */
async function findAnsweringChat({ body, services, resource }: GenerateContext): Promise<string | null> {
  if (body.agent_id != null) return null
  const id = body.actor_id as string
  const actor = isIdOf(actorKind, id) ? await actorKind.find(services.pool, id) : null
  if (actor?.project_id !== resource.project_id) return raise('ACTOR_NOT_FOUND', { meta: { id } })
  return actor.chat_id
}

/** Returns the agent of the request, or the agent linked to the actor. */
async function requireAnsweringAgent(tx: Tx, projectId: string, body: Body): Promise<string> {
  const actor = body.actor_id == null ? null : await actorKind.reference(tx, body.actor_id, projectId)
  if (body.actor_id != null && !actor) raise('ACTOR_NOT_FOUND', { meta: { id: body.actor_id } })
  const agentId = body.agent_id ?? actor?.agent_id
  if (agentId == null)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'actor_id', message: 'is not linked to an agent or a chat' })
  const linked = actor?.agent_id ?? actor?.chat_id ?? null
  if (body.agent_id != null && linked !== null && linked !== body.agent_id)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'actor_id',
      message: 'is linked to another agent or to a chat',
    })
  return agentId
}

/**
 * Returns the open session of a conversation, in which its agent answers.
 * @throws SESSION_CLOSED, SESSION_EXPIRED, SESSION_UNDER_OPERATOR, VALIDATION_FAILED for another agent
 */
async function requireSessionOfAgent(tx: Tx, conversation: ConversationRow, agentId: string) {
  const session = await requireAnsweringSession(tx, conversation)
  if (session && session.agent_id !== agentId)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'agent_id', message: 'must be the agent of the session' })
  return session
}
