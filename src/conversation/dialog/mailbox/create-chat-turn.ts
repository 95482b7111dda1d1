import type { z } from 'zod'
import { checkSpend } from '#control/quotas/spend.ts'
import { actorKind } from '#conversation/actors/model.ts'
import { requireCallableChat, requireModelAllowed } from '#conversation/chats/target.ts'
import { eventMessage, eventStream } from '#core/api/event-stream.ts'
import { type Context, type OperationResult, result } from '#core/api/operation.ts'
import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import { createdStatus, type ResponseMode } from '#execution/generations/request/respond.ts'
import { raiseRecorded } from '#execution/generations/request/wait-for-turn.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import type { ConversationRow, GenerateMessageInput } from '../messages/model.ts'
import { findMessage, lockConversation } from '../messages/store.ts'
import {
  CHAT_TURN_CHANNEL,
  type ChatOutcome,
  type ChatTurnRef,
  chatTurnKey,
  findChatPayload,
  insertChatTurn,
} from './chat-turn.ts'
import { findChatTarget } from './execute-chat-turn.ts'
import { requireOpenSession, wakeConversation } from './mailbox.ts'

type GenerateContext = Context<{ wait?: boolean }, z.output<typeof GenerateMessageInput>, ConversationRow>

/**
 * Enqueues a reply of an actor linked to a chat and responds in the caller's mode. A disconnect does not affect the
 * turn.
 * @throws CHAT_NOT_FOUND, AI_PROVIDER_NOT_FOUND, AI_PROVIDER_MISCONFIGURED, PROJECT_PAUSED, ACTOR_NOT_FOUND; with
 *   `wait` the failure of the completion
 */
export async function createChatTurn(
  context: GenerateContext,
  mode: ResponseMode,
  chatId: string,
): Promise<OperationResult> {
  return respondWithChatTurn(context, mode, await enqueueChatTurn(context, mode, chatId))
}

/** Responds with an enqueued turn in the caller's mode. Raises the failure of its completion. */
export async function respondWithChatTurn(
  context: GenerateContext,
  mode: ResponseMode,
  turn: ChatTurnRef,
): Promise<OperationResult> {
  const { services, resource, request } = context
  if (mode === 'stream') return streamChatTurn(context, turn)
  const accepted = result(202, {
    status: 'accepted',
    conversation_id: resource.id,
    generation_id: null,
    trace_id: null,
  })
  if (mode === 'background') return accepted
  const ended = await subscribeChatTurn(services, turn).wait({
    closed: request.closed,
    withinMs: services.config.SYNC_WAIT_SECONDS * 1000,
  })
  if (!ended) return accepted
  const reply = await readResult(services, turn, ended)
  if ('failure' in reply) return raiseRecorded(reply.failure)
  return result(200, reply)
}

async function enqueueChatTurn(context: GenerateContext, mode: ResponseMode, chat_id: string): Promise<ChatTurnRef> {
  const { services, body, caller, resource } = context
  const { project_id } = resource
  const model = body.model ?? null
  const target = await findChatTarget(services, chat_id, model)
  requireModelAllowed(target, model)
  await requireCallableChat(services, target)
  await checkSpend(services, { project_id, agent_id: null, actor_id: null })
  return services.write(async tx => {
    await lockUnpaused(tx, project_id)
    const actor_id = body.actor_id as string
    const actor = await actorKind.reference(tx, actor_id, project_id)
    if (!actor) raise('ACTOR_NOT_FOUND', { meta: { id: actor_id } })
    const conversation = await lockConversation(tx, resource.id)
    if (!conversation) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    if (await requireOpenSession(tx, conversation))
      raiseInvalid({
        code: 'INVALID_VALUE',
        path: 'actor_id',
        message: 'must be omitted: the agent of the session answers',
      })
    if (conversation.message_count === 0)
      raiseInvalid({ code: 'INVALID_VALUE', path: '', message: `conversation ${conversation.id} has no messages` })
    const payload = { authority: principalRecord(caller), model }
    const seq = await insertChatTurn(tx, { conversation_id: conversation.id, chat_id, actor_id, payload })
    wakeConversation(tx, conversation)
    context.record(tx, createdStatus(mode), { made: { seq } })
    return { conversation_id: conversation.id, seq }
  })
}

/** Fallback for lost notifications. */
const POLL_MS = 2000

type Ended = { ended: ChatOutcome | 'deleted' }

const subscribeEnd = ({ notifications }: Services, turn: ChatTurnRef, notify: () => void): (() => void) => {
  const key = chatTurnKey(turn)
  return notifications.listen(CHAT_TURN_CHANNEL, ended => ended === key && notify(), { onReconnect: notify })
}

/** Returns the outcome of a turn; null until it has ended. */
async function readEnd(services: Services, turn: ChatTurnRef): Promise<Ended | null> {
  const payload = await findChatPayload(services.pool, turn)
  if (!payload) return { ended: 'deleted' }
  return payload.ended ? { ended: payload.ended } : null
}

const subscribeChatTurn = (services: Services, turn: ChatTurnRef) =>
  subscribeUntil<Ended | null>({
    subscribe: notify => subscribeEnd(services, turn, notify),
    read: () => readEnd(services, turn),
    isOver: ended => ended !== null,
    pollMs: POLL_MS,
  })

/** Returns the result or the failure of an ended turn for its caller. */
async function readResult(services: Services, turn: ChatTurnRef, { ended }: Ended) {
  const message = `Conversation ${turn.conversation_id} or the reply was deleted`
  const deleted = { failure: new AppError('RESOURCE_NOT_FOUND', { message }).recorded() }
  if (ended === 'deleted') return deleted
  if ('error' in ended) return { failure: ended.error }
  const reply = await findMessage(services.pool, turn.conversation_id, ended.document_id)
  if (!reply) return deleted
  const { model } = ended
  return {
    status: 'completed' as const,
    content: reply.content,
    message: { ...reply, model },
    model,
    generation_id: null,
    trace_id: null,
  }
}

/** Streams a turn; its text is a single delta after the completion. */
function streamChatTurn(context: GenerateContext, turn: ChatTurnRef): OperationResult {
  const { services } = context
  let position = 0
  const message = (event: string, data: object) => eventMessage(++position, event, JSON.stringify(data))
  return eventStream(context, {
    watch: notify => subscribeEnd(services, turn, notify),
    position: () => position,
    async *look() {
      if (position === 0) yield message('started', { generation_id: null, trace_id: null })
      const ended = await readEnd(services, turn)
      if (!ended) return POLL_MS
      const reply = await readResult(services, turn, ended)
      if ('failure' in reply) yield message('error', reply.failure)
      else {
        yield message('delta', { choices: [{ index: 0, delta: { content: reply.content ?? '' } }] })
        yield message('completed', reply)
      }
      return 'ended'
    },
  })
}
