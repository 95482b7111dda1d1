import { z } from 'zod'
import { messageTextJoin } from '#content/documents/message-text.ts'
import { comparedText, replyHash } from '#conversation/dialog/mailbox/reply-hash.ts'
import { messageOrigin } from '#conversation/dialog/messages/store.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import type { StoredMedia, StoredMessages } from './stored-media.ts'

/**
 * A text of a request: of the user, or of the assistant over all steps of a turn. `media` has the images and files of a message
 * of the user that may be stored with it.
 */
export type Spoken = { role: 'user' | 'assistant'; text: string; media?: StoredMedia }

const mediaNote = (name: string): string => `[file: ${JSON.stringify(name)}]`

/** Returns the text form of a message of the user. */
function userText(content: Extract<ModelMessage, { role: 'user' }>['content']): string {
  if (typeof content === 'string') return content
  return content
    .map(part => (part.type === 'text' ? part.text : mediaNote(part.type === 'file' ? part.file_id : part.filename)))
    .join('\n\n')
}

const assistantText = (content: Extract<ModelMessage, { role: 'assistant' }>['content']): string =>
  typeof content === 'string' ? content : content.flatMap(part => (part.type === 'text' ? part.text : [])).join('\n\n')

/** Returns the messages after the last text of the assistant. */
export const messagesAfterReplies = (messages: readonly ModelMessage[]): ModelMessage[] =>
  messages.slice(
    messages.findLastIndex(
      message => message.role === 'assistant' && comparedText(assistantText(message.content)) !== '',
    ) + 1,
  )

/**
 * Returns the texts of a request; messages of the assistant between two messages of the user are one text.
 * @param stored messages with images and files that may be stored
 */
export function spokenTexts(messages: readonly ModelMessage[], stored: StoredMessages['of'] = new Map()): Spoken[] {
  const spoken: Spoken[] = []
  for (const message of messages) {
    if (message.role === 'user') {
      const media = stored.get(message)
      const text = media?.content ?? userText(message.content)
      if (text.trim() !== '') spoken.push({ role: 'user', text, ...(media && { media }) })
    } else if (message.role === 'assistant') {
      const text = assistantText(message.content)
      const last = spoken.at(-1)
      if (comparedText(text) === '') continue
      // Not joined again for each message, which would copy the earlier ones.
      if (last?.role === 'assistant') last.text += `\n\n${text}`
      else spoken.push({ role: 'assistant', text })
    }
  }
  return spoken
}

const Stored = z.object({
  role: z.enum(['user', 'assistant']),
  origin: z.string(),
  content: z.string().nullable(),
  position: z.int(),
  hash: z.instanceof(Buffer).nullable(),
})
export type Stored = z.output<typeof Stored>
const storedRow = sql.type(Stored)

/** Returns the messages of a conversation with the hashes of replies with several steps, in order. */
export const listStoredTexts = (db: Queryable, conversationId: string): Promise<readonly Stored[]> =>
  db.any(storedRow`
    select m.role, ${messageOrigin} as origin, x.content, m.position, h.hash
    from conversation_messages m ${messageTextJoin} left join reply_hashes h on h.generation_id = m.generation_id
    where m.conversation_id = ${conversationId} order by m.position`)

/** How a request continues a conversation. */
export type Alignment =
  /** The texts of the user are added. */
  | { type: 'append'; added: Spoken[] }
  /**
   * A fork after a position, -1 for none, gets the texts of the user, of which the conversation does not have `unstored`
   * after the position.
   */
  | { type: 'fork'; position: number; added: Spoken[]; unstored: Spoken[] }
  /** Another question of the front end, outside the conversation. */
  | { type: 'ephemeral' }
  /** Another history, which a new conversation gets before the last text of the user. */
  | { type: 'import'; history: Spoken[]; added: Spoken[] }

const hashOf = ({ hash, content }: Stored): Buffer => hash ?? replyHash(content ?? '')

const isByOperator = ({ origin }: Stored): boolean => origin === 'operator'

/**
 * Returns how many replies of a conversation the texts of a request match from the beginning; null if they do not. Texts of
 * operators reach clients by another protocol, so a request may lack them.
 */
function countMatched(sent: readonly Buffer[], replies: readonly Stored[]): number | null {
  let at = 0
  for (const hash of sent) {
    while (at < replies.length && isByOperator(replies[at]) && !hash.equals(hashOf(replies[at]))) at += 1
    if (at === replies.length || !hash.equals(hashOf(replies[at]))) return null
    at += 1
  }
  return at
}

/** Returns how a request continues a conversation, by its texts of the assistant. */
export function alignTexts(spoken: readonly Spoken[], stored: readonly Stored[]): Alignment {
  const sent = spoken.filter(({ role }) => role === 'assistant').map(({ text }) => replyHash(text))
  const replies = stored.filter(
    message => message.role === 'assistant' && (message.hash !== null || comparedText(message.content ?? '') !== ''),
  )
  const matched = countMatched(sent, replies)
  const isComplete = replies.slice(matched ?? 0).every(isByOperator)
  const added = spoken.slice(spoken.findLastIndex(({ role }) => role === 'assistant') + 1)
  const fork = (position: number): Alignment => ({
    type: 'fork',
    position,
    added,
    unstored: withoutStored(added, stored, position),
  })
  if (matched !== null && isComplete)
    return { type: 'append', added: withoutStored(added, stored, replies[matched - 1]?.position ?? -1) }
  if (matched) return fork(replies[matched - 1].position)
  if (sent.length === 0) {
    const first = stored.find(({ role }) => role === 'user')
    return added.length > 0 && first?.content === added[0].text ? fork(-1) : { type: 'ephemeral' }
  }
  const last = spoken.findLastIndex(({ role }) => role === 'user')
  return { type: 'import', history: spoken.slice(0, Math.max(last, 0)), added: last < 0 ? [] : [spoken[last]] }
}

/** Returns the texts without the leading texts that the conversation already has after a position. */
function withoutStored(added: readonly Spoken[], stored: readonly Stored[], after: number): Spoken[] {
  const waiting = stored.filter(({ role, position }) => role === 'user' && position > after)
  const isNew = ({ text }: Spoken, index: number) => waiting[index]?.content !== text
  const first = added.findIndex(isNew)
  return first < 0 ? [] : added.slice(first)
}
