import type { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Made } from '../../core/api/idempotency.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context, OperationResult } from '../../core/api/operation.ts'
import { callerContext, mergeContext } from '../../core/api/tool-context.ts'
import type { Tx } from '../../core/db/writer.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { checkOverlay } from '../../execution/agents/knowledge.ts'
import { admitTurn } from '../../execution/generations/request/admission.ts'
import type { Mailboxes } from '../../execution/generations/request/cancel-turn.ts'
import { nestedTurnFields } from '../../execution/generations/request/create.ts'
import {
  answerTurnAgain,
  createdStatus,
  respondWithTurn,
  responseMode,
} from '../../execution/generations/request/respond.ts'
import { actorKind } from '../actors/model.ts'
import type { ConversationRow, GenerateMessageInput } from '../conversations/model.ts'
import { appendMessage, lockConversation } from '../conversations/store.ts'
import { answerChat, createChatTurn } from './create-chat-turn.ts'
import { endCancelledTurns, enqueueTurn, mailboxState, openSession, refuseSelfWait } from './mailbox.ts'
import { speakerOf } from './store.ts'

type Body = z.output<typeof GenerateMessageInput>
type Generate = Context<{ wait?: boolean }, Body, ConversationRow>

/**
 * Asks for a reply: checks all that can refuse it, puts the turn into the conversation's mailbox, and returns its ids,
 * its result or its stream. A caller that goes away changes nothing.
 * @throws AGENT_NOT_FOUND, ACTOR_NOT_FOUND, PROJECT_PAUSED, SESSION_CLOSED, SESSION_EXPIRED,
 * GENERATION_ALREADY_IN_PROGRESS; a failed turn that was waited for raises its own code
 */
export async function generateInConversation(context: Generate): Promise<OperationResult> {
  const { body, query, services, resource } = context
  const mode = responseMode(body.stream, query.wait)
  refuseSelfWait(context.origin, resource.id)
  const sent = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  const chat = await chatOf(context)
  if (chat !== null) {
    if (body.knowledge_config)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'knowledge_config', message: 'is for agents' })
    return createChatTurn(context, mode, chat)
  }
  return respondWithTurn(context, mode, async generation_id => {
    const { trace_id } = await services.write(async tx => {
      const turn = await ask(tx, context, { generation_id, stream: mode === 'stream', sent })
      context.record(tx, createdStatus(mode), { made: { generation_id } })
      return turn
    })
    return { conversation_id: resource.id, generation_id, trace_id }
  })
}

/** Answers a repeat for a turn that a first request had asked for when it was lost. */
export async function generateAgain(context: Generate, made: Made): Promise<OperationResult> {
  const { body, query, resource } = context
  const mode = responseMode(body.stream, query.wait)
  if (typeof made.seq === 'number') return answerChat(context, mode, { conversation_id: resource.id, seq: made.seq })
  return answerTurnAgain(context, mode, made, { conversation_id: resource.id })
}

async function ask(
  tx: Tx,
  { allow, body, caller, services, resource, origin }: Generate,
  turn: { generation_id: string; stream: boolean; sent: Record<string, string> | null },
) {
  const { project_id } = resource
  const agent_id = await answering(tx, project_id, body)
  const { id: conversation_id, session_id } = resource
  const actor_id = session_id === null ? null : resource.actor_id
  const agent = await admitTurn(tx, services, { project_id, agent_id, actor_id, session_id, conversation_id })
  if (turn.stream && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  const conversation = await lockConversation(tx, resource.id)
  if (!conversation) raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
  const session = conversation.session_id === null ? null : await admitSession(tx, conversation, agent_id)
  if (conversation.message_count === 0)
    raiseInvalid({ code: 'INVALID_VALUE', path: '', message: 'the conversation has no messages' })
  if (body.knowledge_config)
    await checkOverlay({ tx, allow }, agent, project_id, body.knowledge_config, session?.knowledge_config)
  if (session) await takePlace(tx, services, conversation)
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
      tool_context: session ? mergeContext(session.tool_context, turn.sent) : turn.sent,
      actor_id: session?.actor_id ?? null,
      authority: principalRecord(caller),
      permission: {
        action: 'conversations:GenerateConversationMessage',
        kind: 'conversation',
        id: conversation.id,
      },
      streamed: turn.stream,
      shape: 'conversation',
      ...nestedTurnFields(origin),
    },
  })
}

/**
 * Makes room for a turn of a session: refused while another runs or is due; an automatic one that still waits is
 * answered for by this one.
 */
async function takePlace(tx: Tx, services: Services, conversation: ConversationRow): Promise<void> {
  const { running, queued } = await mailboxState(tx, conversation.id)
  const busy = running ?? queued.find(waiting => waiting.due)
  if (busy) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: busy.generation_id } })
  await endCancelledTurns(
    tx,
    services,
    queued.filter(waiting => waiting.kind === 'auto'),
  )
}

/** Runs a failed turn again: it takes its place in the mailbox as one asked for now, by the same speaker. */
export const enqueueRetry: Mailboxes['retry'] = async (tx, services, failed, input) => {
  const conversation = await lockConversation(tx, failed.conversation_id as string)
  if (!conversation) return raise('RESOURCE_NOT_FOUND', { meta: { id: failed.conversation_id } })
  const session = await openSession(tx, conversation)
  if (session) await takePlace(tx, services, conversation)
  return enqueueTurn(tx, services, conversation, {
    kind: 'turn',
    speaker_actor_id: await speakerOf(tx, failed.id),
    input: {
      ...input,
      messages: null,
      tool_context: session?.tool_context ?? null,
      actor_id: session?.actor_id ?? null,
    },
  })
}

/**
 * Carries on in a conversation: its opening, a message of nobody, and a turn that answers it, by whoever spoke in the turn
 * that it follows.
 */
export const enqueueContinuation: Mailboxes['continue'] = async (tx, services, conversationId, opening, input) => {
  const conversation = await lockConversation(tx, conversationId)
  if (!conversation) return raise('RESOURCE_NOT_FOUND', { meta: { id: conversationId } })
  const session = await openSession(tx, conversation)
  await appendMessage(tx, conversation, { role: 'user', content: opening, actor_id: null })
  return enqueueTurn(tx, services, conversation, {
    kind: 'continuation',
    speaker_actor_id: input.initiator_generation_id ? await speakerOf(tx, input.initiator_generation_id) : null,
    input: { ...input, messages: null, actor_id: session?.actor_id ?? null, shape: 'conversation' },
  })
}

/** The chat that answers for the actor that is to speak; null where an agent does. Raises ACTOR_NOT_FOUND. */
async function chatOf({ body, services, resource }: Generate): Promise<string | null> {
  if (body.agent_id != null) return null
  const id = body.actor_id as string
  const actor = isIdOf(actorKind, id) ? await actorKind.find(services.pool, id) : null
  if (actor?.project_id !== resource.project_id) return raise('ACTOR_NOT_FOUND', { meta: { id } })
  return actor.chat_id
}

/** The agent that answers: the one named, or the one the actor is linked to. */
async function answering(tx: Tx, projectId: string, body: Body): Promise<string> {
  const actor = body.actor_id == null ? null : await actorKind.reference(tx, body.actor_id, projectId)
  if (body.actor_id != null && !actor) raise('ACTOR_NOT_FOUND', { meta: { id: body.actor_id } })
  const agentId = body.agent_id ?? actor?.agent_id
  if (agentId == null)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'actor_id', message: 'the actor is linked to nothing that answers' })
  const linked = actor?.agent_id ?? actor?.chat_id ?? null
  if (body.agent_id != null && linked !== null && linked !== body.agent_id)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'actor_id',
      message: 'the actor is linked to another agent, or to a chat',
    })
  return agentId
}

/** The session whose conversation it is. Raises SESSION_CLOSED, SESSION_EXPIRED; 400 for another agent. */
async function admitSession(tx: Tx, conversation: ConversationRow, agentId: string) {
  const session = await openSession(tx, conversation)
  if (session && session.agent_id !== agentId)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'agent_id', message: 'only the agent of the session answers here' })
  return session
}
