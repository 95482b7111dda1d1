import { redactCredentials } from '#core/base/log.ts'
import { ATTRIBUTE } from '#core/base/telemetry-names.ts'
import { maskSecrets } from '#identity/secrets/mask.ts'
import type { ModelAnswer, ModelRequest, PromptMessage } from './model-messages.ts'

/**
 * Messages of a model call as attributes of its span: JSON of the schemas `gen-ai-input-messages.json` and
 * `gen-ai-output-messages.json` of the GenAI conventions. Files are named by their type only.
 */

/** Most bytes of an attribute. */
const MAX_BYTES = 8192

/** Most bytes of a text in it, tried in turn until the attribute fits. */
const TEXT_BYTES = [MAX_BYTES, 2048, 512, 128]

/** Newest messages that are considered: more do not fit. */
const MAX_MESSAGES = 150

/** A message, or its parts, with texts cut by `cut`. */
type Message = { role: string; parts: object[]; finish_reason?: string }
type Cut = (text: string) => string

/** Returns the messages of a request. */
export const inputContent = (request: ModelRequest, secrets: readonly string[]): Record<string, string> => ({
  [ATTRIBUTE.inputMessages]: fitted(secrets, cut => [
    ...(request.system ? [{ role: 'system', parts: [textPart(request.system, cut)] }] : []),
    ...request.messages.slice(-MAX_MESSAGES).map(message => messageOf(message, cut)),
  ]),
})

/** Returns the message of an answer. */
export const outputContent = (answer: ModelAnswer, secrets: readonly string[]): Record<string, string> => ({
  [ATTRIBUTE.outputMessages]: fitted(secrets, cut => [
    {
      role: 'assistant',
      parts: [
        ...(answer.reasoning ? [{ type: 'reasoning', content: cut(answer.reasoning) }] : []),
        ...(answer.text ? [textPart(answer.text, cut)] : []),
        ...answer.tool_calls.map(({ id, tool_name, args }) => callPart(id, tool_name, args, cut)),
      ],
      finish_reason: FINISH_REASONS[answer.finish_reason] ?? answer.finish_reason,
    },
  ]),
})

/** Reasons of the schema, where they differ. */
const FINISH_REASONS: Readonly<Record<string, string>> = {
  'content-filter': 'content_filter',
  'tool-calls': 'tool_call',
}

const textPart = (text: string, cut: Cut) => ({ type: 'text', content: cut(text) })

const callPart = (id: string, name: string, args: unknown, cut: Cut) => ({
  type: 'tool_call',
  id,
  name,
  arguments: jsonOf(args, cut),
})

/** Returns a value with its secrets masked, as text if it is cut. */
function jsonOf(value: unknown, cut: Cut): unknown {
  const text = cut(JSON.stringify(value ?? null))
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function messageOf(message: PromptMessage, cut: Cut): Message {
  const { role, content } = message
  if (typeof content === 'string') return { role, parts: [textPart(content, cut)] }
  const parts = content.map(part => {
    switch (part.type) {
      case 'text':
        return textPart(part.text, cut)
      case 'attachment':
        return { type: 'attachment', mime_type: part.media_type }
      case 'tool_call':
        return callPart(part.tool_call_id, part.tool_name, part.args, cut)
      default:
        return { type: 'tool_call_response', id: part.tool_call_id, response: jsonOf(part.error ?? part.result, cut) }
    }
  })
  return { role, parts }
}

/** Returns messages as JSON of at most MAX_BYTES: texts are cut, then the oldest messages are omitted. */
function fitted(secrets: readonly string[], build: (cut: Cut) => Message[]): string {
  let messages: Message[] = []
  for (const bytes of TEXT_BYTES) {
    messages = build(text => redactCredentials(maskSecrets(text, secrets, bytes)))
    if (fits(messages)) return JSON.stringify(messages)
  }
  while (messages.length > 1 && !fits(messages)) messages.shift()
  const [last] = messages
  while (last.parts.length > 0 && !fits(messages)) last.parts.shift()
  return JSON.stringify(messages)
}

const fits = (messages: Message[]): boolean => Buffer.byteLength(JSON.stringify(messages)) <= MAX_BYTES
