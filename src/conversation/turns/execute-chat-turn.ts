import { checkSpend } from '../../control/quotas/spend.ts'
import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { refusalToStart } from '../../execution/generations/loop/prepare-turn.ts'
import { recordTurnFailure } from '../../execution/generations/loop/settle-turn.ts'
import type { ModelAnswer } from '../../execution/providers/model-messages.ts'
import { actorKind } from '../actors/model.ts'
import { type CompletionTarget, runCompletion } from '../chats/run-completion.ts'
import { servedTarget } from '../chats/target.ts'
import { messageEvents } from '../conversations/model.ts'
import { appendMessage, lockConversation } from '../conversations/store.ts'
import { type ChatPayload, chatPayload, notifyChatSettled, recordChatOutcome } from './chat-turn.ts'
import type { PickedTurn } from './source.ts'
import { endTurns, findClaimedChatTurn } from './store.ts'

/** A chat with what its completions go to. Raises CHAT_NOT_FOUND, and what servedTarget raises. */
export const chatTarget = async (
  services: Services,
  id: string,
  model: string | null,
): Promise<CompletionTarget & { instructions: string | null }> => {
  const { target, chat } = await servedTarget(services.pool, id, model)
  return { ...target, instructions: chat.instructions }
}

/**
 * Answers a turn of a conversation by a chat: one completion, whose reply goes where that of an agent goes. A worker that is
 * lost is followed by another, which asks again; the one that took the turn last settles it.
 */
export async function executeChatTurn(
  services: Services,
  picked: PickedTurn,
  context: Pick<JobContext, 'signal' | 'complete' | 'log'>,
): Promise<'settled' | 'lost'> {
  const { signal, log } = context
  const { turn } = picked
  const started = performance.now()
  const asked = await chatPayload(services.pool, turn)
  if (!asked) return 'lost'
  let given: ModelAnswer | RecordedFailure
  try {
    given = await ask(services, picked, asked, signal)
    await injectFault(services, 'chat_answered')
  } catch (error) {
    if (signal.aborted) return 'lost'
    if (isTransient(error)) throw error
    if (!(error instanceof AppError)) log.error({ err: error }, 'reply of a chat failed')
    given = recordTurnFailure(error)
  }
  // A commit whose answer was lost leaves no turn to settle.
  const outcome = await retryWhileUnavailable(() => services.write(tx => settle(tx, picked, given, context)), {
    signal,
  })
  const duration_ms = Math.round(performance.now() - started)
  const code = 'code' in given ? given.code : null
  log.info({ chat_id: turn.chat_id, attempt: turn.attempt, outcome, code, duration_ms }, 'reply of a chat')
  return outcome
}

/** Raises what refuses the turn at its start, and what its completion fails with. */
async function ask(
  services: Services,
  { conversation, turn, prompt }: PickedTurn,
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
  const target = await chatTarget(services, turn.chat_id as string, model)
  const system = [target.instructions ?? '', ...prompt.system_extra].map(part => part.trim()).filter(Boolean)
  return runCompletion(services, target, {
    system: system.length > 0 ? system.join('\n\n') : null,
    messages: prompt.messages as never,
    temperature: null,
    tools: [],
    tool_choice: null,
    output_schema: null,
    prompt_caching: false,
    signal,
  })
}

/** The reply behind what the turn saw, or its failure, by the worker that took the turn last. */
async function settle(
  tx: Tx,
  { conversation: { id, project_id }, turn }: PickedTurn,
  given: ModelAnswer | RecordedFailure,
  { complete: completeMessage }: Pick<JobContext, 'complete'>,
): Promise<'settled' | 'lost'> {
  // Before the conversation's lock: the delete of an actor goes the other way round.
  if (turn.actor_id !== null) await actorKind.reference(tx, turn.actor_id, project_id)
  const conversation = await lockConversation(tx, id)
  const open = conversation && (await findClaimedChatTurn(tx, turn))
  if (!conversation || !open) return 'lost'
  if ('code' in given) {
    await recordChatOutcome(tx, turn, { error: given })
    await endTurns(tx, id, [turn.seq], 'failed')
  } else {
    const { message } = await appendMessage(tx, conversation, {
      role: 'assistant',
      content: given.text,
      actor_id: open.actor_id,
      position: open.seen_position === null ? undefined : open.seen_position + 1,
    })
    const named = { id: message.document_id, project_id }
    tx.emit(messageEvents, 'generated', named, { data: message, extra: { trace_id: null } })
    await recordChatOutcome(tx, turn, { document_id: message.document_id, model: given.model })
    await endTurns(tx, id, [turn.seq], 'done')
  }
  notifyChatSettled(tx, turn)
  if (open.alone) completeMessage(tx)
  return 'settled'
}
