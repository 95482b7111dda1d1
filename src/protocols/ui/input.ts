import { createHash, randomUUID } from 'node:crypto'
import { z } from 'zod'
import { fileKind } from '#content/files/model.ts'
import { hasIdPrefix } from '#core/api/kind.ts'
import { parse, storabilityProblem } from '#core/api/validate.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { clientFields, type Resume, type RunInput } from '../ag-ui/input.ts'

/** Requests of chats, as runs of threads. */

/** The prefix of session keys of chats, within the limit of 255 characters. */
export const CHAT_KEY_PREFIX = 'ui:'

const id = z.string().min(1).max(255)

/** A part of a message. Fields are read by the type of the part. */
const Part = z.looseObject({ type: z.string().max(255) })
type Part = z.output<typeof Part>

const MAX_PARTS = 100

const Message = z.discriminatedUnion('role', [
  z.looseObject({ id, role: z.literal('user'), parts: z.array(Part).max(MAX_PARTS) }),
  z.looseObject({ id, role: z.literal('assistant'), parts: z.array(Part).max(10_000) }),
  z.looseObject({ id, role: z.literal('system') }),
])
export type Message = z.output<typeof Message>
export type AssistantMessage = Extract<Message, { role: 'assistant' }>

const TRIGGERS = ['submit-message', 'regenerate-message'] as const

/** What a chat sends. Unknown fields are ignored. */
const ChatInput = z.object({
  id: z
    .string()
    .min(1)
    .max(255 - CHAT_KEY_PREFIX.length),
  messages: z.array(Message).min(1).max(10_000),
  trigger: z.enum(TRIGGERS).default('submit-message'),
  messageId: z.string().max(255).nullish(),
  ...clientFields,
})
export type ChatInput = z.output<typeof ChatInput>

/** Parses the body of a request. @throws VALIDATION_FAILED */
export function parseChatInput(body: unknown): ChatInput {
  const problem = storabilityProblem(body)
  if (problem) raiseInvalid(problem)
  return parse(ChatInput, body ?? {})
}

const invalid = (path: string, message: string): never => raiseInvalid({ code: 'INVALID_VALUE', path, message })

const isToolPart = ({ type }: Part): boolean => type.startsWith('tool-') || type === 'dynamic-tool'

/** The message of the assistant that the response continues; null if the response is a new message. */
export function continuedMessage({ messages, messageId, trigger }: ChatInput): AssistantMessage | null {
  if (trigger !== 'submit-message') return null
  const named = messages.find(message => message.id === messageId && message.role === 'assistant')
  const last = named ?? messages[messages.length - 1]
  return last.role === 'assistant' ? last : null
}

/** Outputs of tools of the client by call, and decisions about approvals. */
export type Answers = { outputs: ReadonlyMap<string, unknown>; resume: readonly Resume[] }

/**
 * Returns what the message of the assistant answers that the response continues, or else the last one: outputs of calls in
 * its last step, and decisions. They may be repeated from earlier requests.
 */
export function answersOf(input: ChatInput): Answers {
  const isAssistant = (message: Message): message is AssistantMessage => message.role === 'assistant'
  const parts = (continuedMessage(input) ?? input.messages.findLast(isAssistant))?.parts ?? []
  const step = parts.slice(parts.findLastIndex(({ type }) => type === 'step-start') + 1)
  const outputs = new Map<string, unknown>()
  for (const part of step) {
    const { toolCallId, state, output, errorText, providerExecuted } = part
    if (!isToolPart(part) || providerExecuted === true || typeof toolCallId !== 'string') continue
    if (state === 'output-available') outputs.set(toolCallId, output)
    else if (state === 'output-error') outputs.set(toolCallId, { error: errorText ?? null })
  }
  return { outputs, resume: parts.flatMap(part => decisionOf(part) ?? []) }
}

function decisionOf(part: Part): Resume | null {
  if (!isToolPart(part) || part.state !== 'approval-responded') return null
  const { id: interruptId, approved } = (part.approval ?? {}) as { id?: unknown; approved?: unknown }
  if (typeof interruptId !== 'string' || typeof approved !== 'boolean' || interruptId === '') return null
  return { interruptId: interruptId.slice(0, 255), status: 'resolved', payload: { approved } }
}

/** How a request replaces a part of the chat: after a message of the user, or from it on. */
export type Rewind = { message_id: string; replaces_message: boolean }

/**
 * Returns how a request replaces a part of the chat; null if the request continues it. A regenerated answer follows the last
 * message of the user; an edited message is named by the request.
 * @throws VALIDATION_FAILED for a regenerated answer without a message of the user
 */
export function rewindOf({ trigger, messages, messageId }: ChatInput): Rewind | null {
  if (trigger === 'regenerate-message') {
    const last = messages.findLast(({ role }) => role === 'user')
    return {
      message_id: last?.id ?? invalid('messages', 'must contain a message of the user'),
      replaces_message: false,
    }
  }
  const last = messages[messages.length - 1]
  return last.role === 'user' && last.id === messageId ? { message_id: last.id, replaces_message: true } : null
}

/**
 * Returns the id of the run of a request. The same message or the same answers begin one run; a regenerated answer and an
 * edited message begin another one each time.
 */
function runIdOf(input: ChatInput): string {
  if (rewindOf(input)) return randomUUID()
  const last = input.messages[input.messages.length - 1]
  const { outputs, resume } = answersOf(input)
  const answers = last.role === 'assistant' ? [[...outputs], resume] : []
  return createHash('sha256')
    .update(JSON.stringify([last.id, ...answers]))
    .digest('hex')
}

type RunPart = {
  type: string
  text?: string
  source?: { type: string; value: string; mimeType?: string }
  metadata?: object
}

/** Returns the bytes of a data URL in base64; null for another URL. */
function base64Of(url: string): string | null {
  const comma = url.startsWith('data:') ? url.indexOf(',') : -1
  if (comma < 0) return null
  const content = url.slice(comma + 1)
  if (url.slice(0, comma).endsWith(';base64')) return content
  try {
    return Buffer.from(decodeURIComponent(content)).toString('base64')
  } catch {
    return invalid('messages', 'must not contain malformed data URLs')
  }
}

const kindOf = (mediaType: string): string =>
  mediaType.startsWith('image/') ? 'image' : /^(audio|video)\//.test(mediaType) ? mediaType.slice(0, 5) : 'document'

/** Returns the part of a run for a part of a message; null for a part that a model does not read. */
function runPartOf(part: Part): RunPart | null {
  const { type, text, url, mediaType, filename } = part
  if (type === 'text') return typeof text === 'string' ? { type, text } : null
  if (type !== 'file') return null
  if (typeof url !== 'string' || typeof mediaType !== 'string' || mediaType.length > 255)
    return invalid('messages', 'must have a url and a mediaType in parts of type file')
  const base64 = base64Of(url)
  const source = {
    type: base64 !== null ? 'data' : hasIdPrefix(fileKind, url) ? 'file' : 'url',
    value: base64 ?? url,
    mimeType: mediaType,
  }
  return { type: kindOf(mediaType), source, metadata: { filename } }
}

/** Returns a message of the user as a message of a run. */
function runMessageOf(message: Extract<Message, { role: 'user' }>) {
  const parts = message.parts.flatMap(part => runPartOf(part) ?? [])
  const isText = parts.every(({ type }) => type === 'text')
  return {
    id: message.id,
    role: message.role,
    content: isText ? parts.map(({ text }) => text).join('\n\n') : parts,
  }
}

/** Returns the run of a request: its messages, of which only messages of the user are stored. */
export const runInputOf = (input: ChatInput): RunInput => ({
  threadId: input.id,
  runId: runIdOf(input),
  messages: input.messages.map(message =>
    message.role === 'user' ? runMessageOf(message) : { id: message.id, role: message.role },
  ),
  tools: input.tools,
  context: input.context,
})

/** Returns the run of a request about a chat, without messages. */
export function runOfChat(chatId: string): RunInput {
  const threadId = parse(ChatInput.shape.id, chatId)
  return { threadId, runId: randomUUID(), messages: [] }
}
