import type { z } from 'zod'
import { checkSpend } from '../../control/quotas/spend.ts'
import { AppError, raise, raiseInvalid } from '../../core/api/errors.ts'
import { eventMessage, eventStream } from '../../core/api/event-stream.ts'
import { type Context, type OperationResult, result } from '../../core/api/operation.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { subscribeUntil } from '../../core/jobs/subscription.ts'
import type { Services } from '../../core/process/services.ts'
import { createdStatus, type ResponseMode } from '../../execution/generations/request/respond.ts'
import { raiseRecorded } from '../../execution/generations/request/wait-for-turn.ts'
import { lockUnpaused } from '../../identity/projects/pause.ts'
import { actorKind } from '../actors/model.ts'
import { requireCallableChat, requireModel } from '../chats/target.ts'
import type { ConversationRow, GenerateMessageInput } from '../conversations/model.ts'
import { findMessage, lockConversation } from '../conversations/store.ts'
import {
  CHAT_TURN_CHANNEL,
  type ChatOutcome,
  type ChatTurnPayload,
  chatPayload,
  chatTurnName,
  insertChatTurn,
} from './chat-turn.ts'
import { chatTarget } from './execute-chat-turn.ts'
import { openSession, wakeConversation } from './mailbox.ts'

type Asking = Context<{ wait?: boolean }, z.output<typeof GenerateMessageInput>, ConversationRow>

/**
 * Asks for a reply of an actor that a chat speaks as. It takes its place in the mailbox like any turn; a caller that goes
 * away changes nothing.
 * @throws CHAT_NOT_FOUND, AI_PROVIDER_NOT_FOUND, AI_PROVIDER_MISCONFIGURED, PROJECT_PAUSED, ACTOR_NOT_FOUND; what the
 *   completion of a turn that was waited for failed with
 */
export async function createChatTurn(context: Asking, mode: ResponseMode, chatId: string): Promise<OperationResult> {
  return answerChat(context, mode, await placeTurn(context, mode, chatId))
}

/** The answer of a turn that is placed, in the caller's mode. Raises what its completion failed with. */
export async function answerChat(context: Asking, mode: ResponseMode, turn: ChatTurnPayload): Promise<OperationResult> {
  const { services, resource, request } = context
  if (mode === 'stream') return streamEnd(context, turn)
  const accepted = result(202, {
    status: 'accepted',
    conversation_id: resource.id,
    generation_id: null,
    trace_id: null,
  })
  if (mode === 'background') return accepted
  const ended = await expectChatEnd(services, turn).wait({
    closed: request.closed,
    withinMs: services.config.SYNC_WAIT_SECONDS * 1000,
  })
  if (!ended) return accepted
  const reply = await resultOf(services, turn, ended)
  if ('failure' in reply) return raiseRecorded(reply.failure)
  return result(200, reply)
}

async function placeTurn(context: Asking, mode: ResponseMode, chat_id: string): Promise<ChatTurnPayload> {
  const { services, body, caller, resource } = context
  const { project_id } = resource
  const model = body.model ?? null
  const target = await chatTarget(services, chat_id, model)
  requireModel(target, model)
  await requireCallableChat(services, target)
  await checkSpend(services, { project_id, agent_id: null, actor_id: null })
  return services.write(async tx => {
    await lockUnpaused(tx, project_id)
    const actor_id = body.actor_id as string
    const actor = await actorKind.reference(tx, actor_id, project_id)
    if (!actor) raise('ACTOR_NOT_FOUND', { meta: { id: actor_id } })
    const conversation = await lockConversation(tx, resource.id)
    if (!conversation) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    if (await openSession(tx, conversation))
      raiseInvalid({ code: 'INVALID_VALUE', path: 'actor_id', message: 'only the agent of the session answers here' })
    if (conversation.message_count === 0)
      raiseInvalid({ code: 'INVALID_VALUE', path: '', message: 'the conversation has no messages' })
    const payload = { authority: principalRecord(caller), model }
    const seq = await insertChatTurn(tx, { conversation_id: conversation.id, chat_id, actor_id, payload })
    wakeConversation(tx, conversation)
    context.record(tx, createdStatus(mode), { made: { seq } })
    return { conversation_id: conversation.id, seq }
  })
}

/** The floor under the notifications. */
const POLL_MS = 2000

type Ended = { ended: ChatOutcome | 'gone' }

const watchEnd = ({ notifications }: Services, turn: ChatTurnPayload, notice: () => void): (() => void) => {
  const name = chatTurnName(turn)
  return notifications.listen(CHAT_TURN_CHANNEL, ended => ended === name && notice(), { onReconnect: notice })
}

/** How a turn ended; null while it has not. */
async function readEnd(services: Services, turn: ChatTurnPayload): Promise<Ended | null> {
  const payload = await chatPayload(services.pool, turn)
  if (!payload) return { ended: 'gone' }
  return payload.ended ? { ended: payload.ended } : null
}

const expectChatEnd = (services: Services, turn: ChatTurnPayload) =>
  subscribeUntil<Ended | null>({
    subscribe: notice => watchEnd(services, turn, notice),
    read: () => readEnd(services, turn),
    isOver: ended => ended !== null,
    pollMs: POLL_MS,
  })

/** What a caller is told of the end of a turn. */
async function resultOf(services: Services, turn: ChatTurnPayload, { ended }: Ended) {
  const gone = { failure: new AppError('RESOURCE_NOT_FOUND', { message: 'The conversation is gone' }).recorded() }
  if (ended === 'gone') return gone
  if ('error' in ended) return { failure: ended.error }
  const message = await findMessage(services.pool, turn.conversation_id, ended.document_id)
  if (!message) return gone
  const { model } = ended
  return {
    status: 'completed' as const,
    content: message.content,
    message: { ...message, model },
    model,
    generation_id: null,
    trace_id: null,
  }
}

/** The stream of a turn: its text comes when it is there as a whole. */
function streamEnd(context: Asking, turn: ChatTurnPayload): OperationResult {
  const { services } = context
  let position = 0
  const message = (event: string, data: object) => eventMessage(++position, event, JSON.stringify(data))
  return eventStream(context, {
    watch: news => watchEnd(services, turn, news),
    position: () => position,
    async *look() {
      if (position === 0) yield message('started', { generation_id: null, trace_id: null })
      const ended = await readEnd(services, turn)
      if (!ended) return POLL_MS
      const reply = await resultOf(services, turn, ended)
      if ('failure' in reply) yield message('error', reply.failure)
      else {
        yield message('delta', { choices: [{ index: 0, delta: { content: reply.content ?? '' } }] })
        yield message('completed', reply)
      }
      return 'ended'
    },
  })
}
