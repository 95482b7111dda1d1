import type { RecordedFailure } from '../../core/api/errors.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { ModelMessage } from '../../execution/providers/model-messages.ts'
import type { ConversationRow } from '../conversations/model.ts'
import { type PromptFacts, type SeenMessage, startTurnWithPrompt, type TurnRow } from './store.ts'

export type Prompt = { messages: ModelMessage[]; system_extra: string[] }

/**
 * Marks a turn as running and answers what it works on: the conversation as it stood when the turn was first taken. It speaks to the conversation's
 * owner, of a session the end user. Under lockConversation.
 */
export async function preparePrompt(
  tx: Queryable,
  conversation: ConversationRow,
  turn: TurnRow,
): Promise<Prompt | { refuse: RecordedFailure }> {
  const listener = conversation.actor_id
  const facts = await startTurnWithPrompt(tx, turn, listener)
  if (facts.answers === null)
    return {
      refuse:
        turn.chat_id === null
          ? { code: 'AGENT_NOT_FOUND', message: 'The agent of the turn no longer exists' }
          : { code: 'CHAT_NOT_FOUND', message: 'The chat of the turn no longer exists' },
    }
  const messages = facts.messages.flatMap(messagesOf)
  if (messages.length === 0)
    return {
      refuse: { code: 'VALIDATION_FAILED', message: `Conversation ${conversation.id} has no messages to answer` },
    }
  return { messages, system_extra: systemParts(facts, turn.actor_id, listener) }
}

/** Instructions of the speaker, those of whom it speaks to when they differ, and who it is. */
function systemParts(facts: PromptFacts, speakerId: string | null, listenerId: string | null): string[] {
  const speaker = speakerId === null ? undefined : facts.actors[speakerId]
  const listener = listenerId === null ? undefined : facts.actors[listenerId]
  const parts = [speaker?.instructions ?? '']
  if (listener && listener.instructions !== speaker?.instructions) parts.push(listener.instructions ?? '')
  if (speaker)
    parts.push(`You speak as ${speaker.name}. Answer only for yourself and never write the words of anybody else.`)
  return parts.filter(part => part.trim() !== '')
}

/** A stored message as the model sees it; one whose text was purged is left out. */
function messagesOf(message: SeenMessage): ModelMessage[] {
  if (Array.isArray(message.history)) return message.history as ModelMessage[]
  if (message.content === null) return []
  if (message.role === 'assistant') return [{ role: 'assistant', content: [{ type: 'text', text: message.content }] }]
  return [{ role: 'user', content: `${labelOf(message)}${message.content}` }]
}

/** `[Ann] [lang: en]: `, or nothing when a message has neither author nor metadata. */
function labelOf({ actor_name, metadata }: SeenMessage): string {
  const facts = Object.entries(metadata ?? {}).map(
    ([key, value]) => `${key}: ${typeof value === 'string' ? value : JSON.stringify(value)}`,
  )
  const labels = [
    ...(actor_name === null ? [] : [`[${actor_name}]`]),
    ...(facts.length === 0 ? [] : [`[${facts.join(', ')}]`]),
  ]
  return labels.length === 0 ? '' : `${labels.join(' ')}: `
}
