import type { AttachedFile, PromptMessage, TextPart, ToolCallPart, ToolResultPart } from '../model-messages.ts'
import type { OutgoingProfile } from './profile.ts'

/** Precedes a history that begins with the assistant. */
const OPENING: PromptMessage = { role: 'user', content: 'Begin.' }
/** Text of the assistant between results and a message of the user. */
export const ACKNOWLEDGEMENT = 'OK.'
/** Follows a history that ends with the assistant. */
const CONTINUATION: PromptMessage = { role: 'user', content: 'Continue.' }

/** Text of a message of documents alone. */
const DOCUMENT_TEXT = 'See the attached document.'
/** Text of a result without any. */
const BLANK_RESULT = '(no output)'

const NO_RESULT = { code: 'TOOL_CALL_FAILED', message: 'The call has no result' }

type Pending = Map<string, ToolCallPart>

/**
 * Returns messages in an order that every vendor accepts: without blank texts, with one result right after each call and
 * none elsewhere, and with an order of roles that the vendor takes.
 */
export function shapeMessages(
  messages: readonly PromptMessage[],
  { assistantFirst, assistantLast, alternates, userAfterResults, needsTexts }: OutgoingProfile,
): PromptMessage[] {
  const shaped: PromptMessage[] = []
  let pending: Pending = new Map()
  for (const message of messages) {
    if (message.role === 'tool') {
      const results = message.content.filter(({ tool_call_id }) => pending.delete(tool_call_id))
      const content = needsTexts ? results.map(withText) : results
      if (content.length > 0) shaped.push({ role: 'tool', content })
      continue
    }
    const spoken = withoutBlanks(message)
    if (spoken === null) continue
    const content = needsTexts ? withDocumentText(spoken) : spoken
    if (isPaused(content) && !assistantLast && shaped.at(-1)?.role === 'assistant') shaped.push(CONTINUATION)
    shaped.push(...missingResults(pending))
    if (!userAfterResults && content.role === 'user' && shaped.at(-1)?.role === 'tool')
      shaped.push({ role: 'assistant', content: ACKNOWLEDGEMENT })
    pending = callsOf(content)
    shaped.push(content)
  }
  shaped.push(...missingResults(pending))
  if (!assistantFirst && shaped[0]?.role === 'assistant') shaped.unshift(OPENING)
  const last = shaped.at(-1)
  if (last === undefined || (!assistantLast && last.role === 'assistant' && !isPaused(last))) shaped.push(CONTINUATION)
  return alternates ? joinNeighbours(shaped) : shaped
}

type Spoken = Exclude<PromptMessage, { role: 'tool' }>

/** Whether the vendor continues a message with its answer. Its text may be blank next to calls of the vendor. */
const isPaused = (message: PromptMessage): boolean => message.role === 'assistant' && message.vendor?.paused === true

/** Returns a message without blank texts; null if nothing is left. */
function withoutBlanks(message: Spoken): Spoken | null {
  if (isPaused(message)) return message
  if (typeof message.content === 'string') return isBlank(message.content) ? null : message
  const content = (message.content as (TextPart | AttachedFile | ToolCallPart)[]).filter(
    part => part.type !== 'text' || !isBlank(part.text),
  )
  if (content.length === 0) return null
  return content.length === message.content.length ? message : ({ ...message, content } as Spoken)
}

/** Adds a text to a message of documents alone. */
function withDocumentText(message: Spoken): Spoken {
  if (message.role !== 'user' || typeof message.content === 'string') return message
  const { content } = message
  const hasDocument = content.some(part => part.type === 'attachment' && !part.media_type.startsWith('image/'))
  return hasDocument && content.every(({ type }) => type !== 'text')
    ? { ...message, content: [{ type: 'text', text: DOCUMENT_TEXT }, ...content] }
    : message
}

/** Gives a blank result a text. */
const withText = (part: ToolResultPart): ToolResultPart =>
  !part.error && typeof part.result === 'string' && isBlank(part.result) ? { ...part, result: BLANK_RESULT } : part

/** Joins consecutive messages of the user, and consecutive texts of the assistant. */
function joinNeighbours(messages: readonly PromptMessage[]): PromptMessage[] {
  const joined: PromptMessage[] = []
  for (const message of messages) {
    const last = joined.at(-1)
    if (last?.role === message.role && last.role !== 'tool' && message.role !== 'tool')
      joined[joined.length - 1] = joinedWith(last, message)
    else joined.push(message)
  }
  return joined
}

/** Joins a message with the next one. Calls are only in the next one: results follow them. */
function joinedWith(first: Spoken, next: Spoken): PromptMessage {
  const before = partsOf(first)
  const joined = { ...next, content: [...before, ...partsOf(next)] } as PromptMessage
  if (next.role !== 'assistant' || !next.vendor) return joined
  const parts = [...(before as TextPart[]), ...next.vendor.parts]
  return { ...joined, vendor: { ...next.vendor, parts } } as PromptMessage
}

const partsOf = ({ content }: Spoken): readonly object[] =>
  typeof content === 'string' ? [{ type: 'text', text: content }] : content

const isBlank = (text: string): boolean => text.trim() === ''

const callsOf = ({ role, content }: Spoken): Pending =>
  new Map(
    role === 'user' || typeof content === 'string'
      ? []
      : content.flatMap(part => (part.type === 'tool_call' ? [[part.tool_call_id, part]] : [])),
  )

/** Returns results of calls that have none, as of a turn that was cut. */
function missingResults(pending: Pending): PromptMessage[] {
  if (pending.size === 0) return []
  const content = [...pending.values()].map(
    ({ tool_call_id, tool_name }): ToolResultPart => ({
      type: 'tool_result',
      tool_call_id,
      tool_name,
      result: null,
      error: NO_RESULT,
    }),
  )
  pending.clear()
  return [{ role: 'tool', content }]
}
