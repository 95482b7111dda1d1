import type { RecordedFailure } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type LoadedTurn, turnFromJson } from '#execution/generations/loop/turn-store.ts'
import type { PromptContext } from '#execution/generations/model.ts'
import { type FilePart, type ModelMessage, messageText, type TextPart } from '#execution/providers/model-messages.ts'
import type { ConversationRow } from '../messages/model.ts'
import type { MessagePart } from '../messages/parts-model.ts'
import { type PromptFacts, type SeenMessage, startTurnWithPrompt, type TurnRow } from './store.ts'

export type Prompt = { messages: ModelMessage[]; system_extra: string[]; context: PromptContext | null }

/**
 * Marks a turn as running and returns its prompt: the conversation as of the turn's first claim. The turn speaks to the
 * conversation's owner, which in a session is the end user. Requires lockConversation.
 */
export async function preparePrompt(
  tx: Queryable,
  conversation: ConversationRow,
  turn: TurnRow,
): Promise<{ prompt: Prompt | { refuse: RecordedFailure }; loaded: LoadedTurn | null }> {
  return promptFrom(await startTurnWithPrompt(tx, turn, conversation.actor_id), conversation, turn)
}

/** Returns the prompt of a turn and the loaded turn from the input that was read. */
export const promptFrom = (facts: PromptFacts, conversation: ConversationRow, turn: TurnRow) => ({
  prompt: promptOf(facts, conversation, turn),
  loaded: facts.loaded && turnFromJson(facts.loaded),
})

function promptOf(
  facts: PromptFacts,
  conversation: ConversationRow,
  turn: TurnRow,
): Prompt | { refuse: RecordedFailure } {
  if (facts.answers === null)
    return {
      refuse:
        turn.chat_id === null
          ? { code: 'AGENT_NOT_FOUND', message: 'The agent of the turn was deleted' }
          : { code: 'CHAT_NOT_FOUND', message: 'The chat of the turn was deleted' },
    }
  const isOther = otherSpeakerOf(conversation, turn)
  const messages = withoutRefused(facts.messages).flatMap(message =>
    isOther(message) ? wordsOf(message) : messagesOf(message),
  )
  if (messages.length === 0)
    return {
      refuse: { code: 'VALIDATION_FAILED', message: `Conversation ${conversation.id} has no messages to answer` },
    }
  const { bytes_per_token } = conversation
  return {
    messages,
    system_extra: systemParts(facts, turn.actor_id, conversation.actor_id),
    context: facts.summary === null && bytes_per_token === null ? null : { summary: facts.summary, bytes_per_token },
  }
}

/** Returns the instructions of the speaker and, if different, of the listener, and the name of the speaker. */
function systemParts(facts: PromptFacts, speakerId: string | null, listenerId: string | null): string[] {
  const speaker = speakerId === null ? undefined : facts.actors[speakerId]
  const listener = listenerId === null ? undefined : facts.actors[listenerId]
  const parts = [speaker?.instructions ?? '']
  if (listener && listener.instructions !== speaker?.instructions) parts.push(listener.instructions ?? '')
  if (speaker)
    parts.push(`You speak as ${speaker.name}. Answer only as ${speaker.name} and never write the words of anyone else.`)
  return parts.filter(part => part.trim() !== '')
}

/**
 * Returns the messages without refused answers and, where the user has written since, the messages that these answered: a
 * vendor refuses every request that has them. Notes of the platform remain. `isInRefusedExchange` is the rule for other readers.
 */
function withoutRefused(messages: readonly SeenMessage[]): SeenMessage[] {
  const kept: SeenMessage[] = []
  let leftOut = false
  let isFollowed = false
  for (const message of messages.toReversed()) {
    if (message.refused) {
      leftOut = isFollowed
      continue
    }
    const isOfUser = message.role === 'user' && !message.note
    if (isOfUser && leftOut) continue
    if (message.role === 'assistant') leftOut = false
    isFollowed ||= isOfUser
    kept.push(message)
  }
  return kept.reverse()
}

/**
 * Returns whether a reply has another author than the agent or actor that answers a turn. In a session there is one
 * assistant: its agent, whichever it is, and its operators.
 */
function otherSpeakerOf({ session_id }: ConversationRow, turn: TurnRow) {
  return ({ role, agent_id, actor_id }: SeenMessage): boolean => {
    if (role !== 'assistant' || (agent_id === null && actor_id === null)) return false
    if (actor_id !== null && turn.actor_id !== null) return actor_id !== turn.actor_id
    if (session_id !== null) return false
    return agent_id === null || agent_id !== turn.agent_id
  }
}

/** Returns the words of another speaker as a message of the user, without the tool calls that led to them. */
function wordsOf(message: SeenMessage): ModelMessage[] {
  if (message.content === null) return []
  const steps = Array.isArray(message.history) ? (message.history as ModelMessage[]) : []
  const texts = steps.flatMap(step => (step.role === 'assistant' ? messageText(step) : []))
  const text = (steps.length > 0 ? texts : [message.content]).filter(each => each.trim() !== '').join('\n\n')
  if (text === '') return []
  const label = labelOf({ ...message, actor_name: message.actor_name ?? message.agent_name ?? 'another agent' })
  return [{ role: 'user', content: `${label}${withoutNoteTags(text)}` }]
}

/** Returns a stored message as model messages; none if its text was erased. */
function messagesOf(message: SeenMessage): ModelMessage[] {
  if (message.content === null) return []
  if (Array.isArray(message.history)) return message.history as ModelMessage[]
  if (message.role === 'assistant') return [{ role: 'assistant', content: [{ type: 'text', text: message.content }] }]
  if (message.parts !== null) return [{ role: 'user', content: partsOf(message, message.parts) }]
  const content = withoutNoteTags(message.content)
  if (message.note) return [{ role: 'user', content: `<platform_note>\n${content}\n</platform_note>` }]
  return [{ role: 'user', content: `${labelOf(message)}${content}` }]
}

/** Escapes the tags of notes of the platform, which therefore no other text has. */
export const withoutNoteTags = (text: string): string => text.replace(/<(?=\s*(?:\/\s*)?platform_note)/gi, '&lt;')

/** Returns the parts of a message for the model, after its label; a document that does not exist any more is left out. */
function partsOf(message: SeenMessage, parts: readonly MessagePart[]): (TextPart | FilePart)[] {
  const { document_id: message_id, descriptions, texts } = message
  const text = (text: string | undefined): TextPart[] => (text ? [{ type: 'text', text: withoutNoteTags(text) }] : [])
  return [
    ...text(labelOf(message).trimEnd()),
    ...parts.flatMap((part): (TextPart | FilePart)[] => {
      if (part.type === 'text') return text(part.text)
      if (part.type === 'document') return text(texts?.[part.document_id])
      const alt = (part.type === 'image' && part.alt) || null
      const media = { message_id, alt, description: descriptions?.[part.file_id] ?? null }
      return [{ type: 'file', file_id: part.file_id, media }]
    }),
  ]
}

/** Returns a name without control characters, brackets and line ends, by which it could end its label. */
const plainName = (name: string): string =>
  name
    .replace(/[\p{Cc}\p{Zl}\p{Zp}[\]]+/gu, ' ')
    .replace(/ +/g, ' ')
    .trim()

/** Returns `[Ann] [lang: en]: `, or an empty string for a message without author and metadata. */
function labelOf({ actor_name, metadata }: SeenMessage): string {
  const facts = Object.entries(metadata ?? {}).map(
    ([key, value]) => `${key}: ${typeof value === 'string' ? value : JSON.stringify(value)}`,
  )
  const labels = [
    ...(actor_name === null ? [] : [`[${plainName(actor_name)}]`]),
    ...(facts.length === 0 ? [] : [`[${facts.join(', ')}]`]),
  ]
  return labels.length === 0 ? '' : withoutNoteTags(`${labels.join(' ')}: `)
}
