import { checkSpend } from '#control/quotas/spend.ts'
import { actorKind } from '#conversation/actors/model.ts'
import { withFiles } from '#conversation/chats/complete.ts'
import { type CompletionTarget, runCompletion } from '#conversation/chats/run-completion.ts'
import { findServedTarget } from '#conversation/chats/target.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { rowFromJson } from '#core/db/sql.ts'
import type { JobContext } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { refusalToStart } from '#execution/generations/loop/prepare-turn.ts'
import { recordTurnFailure } from '#execution/generations/loop/settle-turn.ts'
import { isRefused, type ModelAnswer } from '#execution/providers/model-messages.ts'
import { type ConversationRow, messageEvents } from '../messages/model.ts'
import { appendMessage, lockConversationAhead, type MessageDraft } from '../messages/store.ts'
import { type ChatPayload, endedChatTurn, findChatPayload, notifyChatSettled } from './chat-turn.ts'
import type { ClaimedTurn } from './source.ts'
import { findClaimedChatTurn } from './store.ts'

/**
 * Returns the target of a chat's completions, with its instructions.
 * @throws CHAT_NOT_FOUND, errors of findServedTarget
 */
export const findChatTarget = async (
  services: Services,
  id: string,
  model: string | null,
): Promise<CompletionTarget & { instructions: string | null }> => {
  const { target, chat } = await findServedTarget(services.pool, id, model)
  return { ...target, instructions: chat.instructions }
}

/**
 * Answers a conversation turn with one completion of a chat. After a lost worker another one repeats the completion;
 * only the last claim settles the turn.
 */
export async function executeChatTurn(
  services: Services,
  claimed: ClaimedTurn,
  context: Pick<JobContext, 'signal' | 'complete' | 'log'>,
): Promise<'settled' | 'claim_lost'> {
  const { signal, log } = context
  const { turn } = claimed
  const started = performance.now()
  const payload = await findChatPayload(services.pool, turn)
  if (!payload) return 'claim_lost'
  let answer: ModelAnswer | RecordedFailure
  try {
    answer = await requestReply(services, claimed, payload, signal)
    await injectFault(services, 'chat_answered')
  } catch (error) {
    if (signal.aborted) return 'claim_lost'
    if (isTransient(error)) throw error
    if (!(error instanceof AppError)) log.error({ err: error }, 'chat reply failed')
    answer = recordTurnFailure(error)
  }
  // After a commit with a lost response there is no turn to settle.
  const outcome = await retryWhileUnavailable(
    () => services.write(tx => settleChatTurn(tx, claimed, answer, context)),
    {
      signal,
    },
  )
  const duration_ms = Math.round(performance.now() - started)
  const code = 'code' in answer ? answer.code : null
  log.info({ chat_id: turn.chat_id, attempt: turn.attempt, outcome, code, duration_ms }, 'chat reply attempt ended')
  return outcome
}

/** Requests the completion. Returns or raises the refusal of the turn; raises errors of the completion. */
async function requestReply(
  services: Services,
  { conversation, turn, prompt }: ClaimedTurn,
  { authority, model }: ChatPayload,
  signal: AbortSignal,
): Promise<ModelAnswer | RecordedFailure> {
  if (!prompt || 'refuse' in prompt) return prompt?.refuse ?? { code: 'GENERATION_FAILED', message: 'No prompt' }
  const { project_id } = conversation
  const permission = {
    action: 'conversations:GenerateConversationMessage',
    kind: 'conversation',
    id: conversation.id,
  }
  const forbidden = await refusalToStart(services, { authority, permission, project_id, agent_id: null })
  if (forbidden) throw forbidden
  await checkSpend(services, { project_id, agent_id: null, actor_id: null }, services.pool, { again: true })
  const target = await findChatTarget(services, turn.chat_id as string, model)
  const system = [target.instructions ?? '', ...prompt.system_extra].map(part => part.trim()).filter(Boolean)
  return withFiles(services, target, prompt.messages, signal, messages =>
    runCompletion(services, target, {
      system: system.length > 0 ? system.join('\n\n') : null,
      messages,
      temperature: null,
      tools: [],
      tool_choice: null,
      output_schema: null,
      prompt_caching: false,
      signal,
    }),
  )
}

/** Appends the reply after the messages that the turn has seen, or records its failure, if the claim is current. */
async function settleChatTurn(
  tx: Tx,
  { conversation: { id, project_id }, turn }: ClaimedTurn,
  answer: ModelAnswer | RecordedFailure,
  { complete: completeMessage }: Pick<JobContext, 'complete'>,
): Promise<'settled' | 'claim_lost'> {
  // Before the conversation's lock, in the order of an actor's deletion.
  if (turn.actor_id !== null) await actorKind.reference(tx, turn.actor_id, project_id)
  await lockConversationAhead(tx, id)
  const open = await findClaimedChatTurn(tx, turn)
  if (!open) return 'claim_lost'
  if ('code' in answer) {
    tx.alongside(() => endedChatTurn(turn, 'failed', { error: answer }))
  } else {
    const reply: MessageDraft = {
      role: 'assistant',
      content: answer.text,
      history: isRefused(answer) ? [] : null,
      actor_id: open.actor_id,
      position: open.seen_position === null ? undefined : open.seen_position + 1,
    }
    const { message } = await appendMessage(tx, rowFromJson(open.conversation) as ConversationRow, reply, open)
    const { document_id } = message
    tx.emit(messageEvents, 'generated', { id: document_id, project_id }, { data: message, extra: { trace_id: null } })
    tx.alongside(() => endedChatTurn(turn, 'done', { document_id, model: answer.model }))
  }
  notifyChatSettled(tx, turn)
  if (open.alone) completeMessage(tx)
  return 'settled'
}
