import type { z } from 'zod'
import { checkSpend } from '../../control/quotas/spend.ts'
import { AppError, invalid, raise } from '../../core/api/errors.ts'
import { eventMessage, eventStream } from '../../core/api/event-stream.ts'
import { type Answer, answer, type Context } from '../../core/api/operation.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { expectEnd } from '../../core/jobs/wait.ts'
import type { Services } from '../../core/process/services.ts'
import { madeStatus, type TurnMode } from '../../execution/generations/answer.ts'
import { raiseRecorded } from '../../execution/generations/wait.ts'
import { lockRunnable } from '../../identity/projects/pause.ts'
import { actorKind } from '../actors/model.ts'
import { requireCallable, requireModel } from '../chats/target.ts'
import type { ConversationRow, GenerateMessageInput } from '../conversations/model.ts'
import { findMessage, lockConversation } from '../conversations/store.ts'
import { chatTarget } from './chat-reply.ts'
import {
  CHAT_TURN_CHANNEL,
  type ChatEnd,
  type ChatTurn,
  chatPayload,
  chatTurnName,
  insertChatTurn,
} from './chat-turn.ts'
import { openSession, wakeConversation } from './mailbox.ts'

type Asking = Context<{ wait?: boolean }, z.output<typeof GenerateMessageInput>, ConversationRow>

/**
 * Asks for a reply of an actor that a chat speaks as. It takes its place in the mailbox like any turn; a caller that goes
 * away changes nothing.
 * @throws CHAT_NOT_FOUND, AI_PROVIDER_NOT_FOUND, AI_PROVIDER_MISCONFIGURED, PROJECT_PAUSED, ACTOR_NOT_FOUND; what the
 *   completion of a turn that was waited for failed with
 */
export async function askChat(context: Asking, mode: TurnMode, chatId: string): Promise<Answer> {
  return answerChat(context, mode, await placeTurn(context, mode, chatId))
}

/** The answer of a turn that is placed, in the caller's mode. Raises what its completion failed with. */
export async function answerChat(context: Asking, mode: TurnMode, turn: ChatTurn): Promise<Answer> {
  const { services, resource, request } = context
  if (mode === 'stream') return streamEnd(context, turn)
  const accepted = answer(202, {
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
  const result = await resultOf(services, turn, ended)
  if ('failure' in result) return raiseRecorded(result.failure)
  return answer(200, result)
}

async function placeTurn(context: Asking, mode: TurnMode, chat_id: string): Promise<ChatTurn> {
  const { services, body, caller, resource } = context
  const { project_id } = resource
  const model = body.model ?? null
  const target = await chatTarget(services, chat_id, model)
  requireModel(target, model)
  await requireCallable(services, target)
  await checkSpend(services, { project_id, agent_id: null, actor_id: null })
  return services.write(async tx => {
    await lockRunnable(tx, project_id)
    const actor_id = body.actor_id as string
    const actor = await actorKind.reference(tx, actor_id, project_id)
    if (!actor) raise('ACTOR_NOT_FOUND', { meta: { id: actor_id } })
    const conversation = await lockConversation(tx, resource.id)
    if (!conversation) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    if (await openSession(tx, conversation))
      invalid({ code: 'INVALID_VALUE', path: 'actor_id', message: 'only the agent of the session answers here' })
    if (conversation.message_count === 0)
      invalid({ code: 'INVALID_VALUE', path: '', message: 'the conversation has no messages' })
    const payload = { authority: principalRecord(caller), model }
    const seq = await insertChatTurn(tx, { conversation_id: conversation.id, chat_id, actor_id, payload })
    wakeConversation(tx, conversation)
    context.record(tx, madeStatus(mode), { made: { seq } })
    return { conversation_id: conversation.id, seq }
  })
}

/** The floor under the notifications. */
const POLL_MS = 2000

type Ended = { ended: ChatEnd | 'gone' }

const watchEnd = ({ notifications }: Services, turn: ChatTurn, notice: () => void): (() => void) => {
  const name = chatTurnName(turn)
  return notifications.listen(CHAT_TURN_CHANNEL, ended => ended === name && notice(), { onReconnect: notice })
}

/** How a turn ended; null while it has not. */
async function readEnd(services: Services, turn: ChatTurn): Promise<Ended | null> {
  const payload = await chatPayload(services.pool, turn)
  if (!payload) return { ended: 'gone' }
  return payload.ended ? { ended: payload.ended } : null
}

const expectChatEnd = (services: Services, turn: ChatTurn) =>
  expectEnd<Ended | null>({
    subscribe: notice => watchEnd(services, turn, notice),
    read: () => readEnd(services, turn),
    isOver: ended => ended !== null,
    pollMs: POLL_MS,
  })

/** What a caller is told of the end of a turn. */
async function resultOf(services: Services, turn: ChatTurn, { ended }: Ended) {
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
function streamEnd(context: Asking, turn: ChatTurn): Answer {
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
      const result = await resultOf(services, turn, ended)
      if ('failure' in result) yield message('error', result.failure)
      else {
        yield message('delta', { choices: [{ index: 0, delta: { content: result.content ?? '' } }] })
        yield message('completed', result)
      }
      return 'ended'
    },
  })
}
