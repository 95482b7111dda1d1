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

/** Most bytes of a text of the instructions, and of a message before the newest. */
const TEXT_BYTES = 2048

/** Most bytes of a text of the newest message, tried in turn until the message fits. */
const NEWEST_TEXT_BYTES = [6144, TEXT_BYTES, 512, 128]

/** Parts of a message that are considered, the newest: more do not fit. */
const MAX_PARTS = 30

type Message = { role: string; parts: object[]; finish_reason?: string }
type Cut = (text: string) => string
/** Makes a message with its texts cut. */
type Build = (cut: Cut) => Message

/** Returns the messages of a request. */
export const inputContent = (
  { system, messages }: ModelRequest,
  secrets: readonly string[],
): Record<string, string> => ({
  [ATTRIBUTE.inputMessages]: fitted(
    secrets,
    messages.map(
      (message): Build =>
        cut =>
          messageOf(message, cut),
    ),
    system ? cut => ({ role: 'system', parts: [textPart(system, cut)] }) : null,
  ),
})

/** Returns the message of an answer. */
export const outputContent = (answer: ModelAnswer, secrets: readonly string[]): Record<string, string> => ({
  [ATTRIBUTE.outputMessages]: fitted(secrets, [
    cut => ({
      role: 'assistant',
      parts: [
        ...(answer.reasoning ? [{ type: 'reasoning', content: cut(answer.reasoning) }] : []),
        ...(answer.text ? [textPart(answer.text, cut)] : []),
        ...answer.tool_calls.slice(-MAX_PARTS).map(({ id, tool_name, args }) => callPart(id, tool_name, args, cut)),
      ],
      finish_reason: FINISH_REASONS[answer.finish_reason] ?? answer.finish_reason,
    }),
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
  const parts = content.slice(-MAX_PARTS).map(part => {
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

/**
 * Returns the beginning of a text with its secrets masked. It ends between words: for the receiver of a project, further secrets
 * are masked, of which a part would not be found.
 */
function beginningOf(text: string, secrets: readonly string[], bytes: number): string {
  const masked = maskSecrets(text, secrets, bytes)
  if (Buffer.byteLength(text) <= bytes) return masked
  let end = masked.length
  while (end > 0 && isOfWord(masked.charCodeAt(end - 1))) end--
  return masked.slice(0, end)
}

/** Whether a character is of ASCII and visible. */
const isOfWord = (code: number): boolean => code > 0x20 && code < 0x7f

/** Returns messages as JSON of at most MAX_BYTES: texts are cut, and the oldest messages omitted, but not the first one. */
function fitted(secrets: readonly string[], messages: readonly Build[], first: Build | null = null): string {
  let room = MAX_BYTES - '[]'.length
  const take = (build: Build, sizes: readonly number[]): string | null => {
    for (const bytes of sizes) {
      const text = JSON.stringify(build(each => redactCredentials(beginningOf(each, secrets, bytes))))
      const size = Buffer.byteLength(text) + ','.length
      if (size > room) continue
      room -= size
      return text
    }
    return null
  }
  const head = first && take(first, [TEXT_BYTES])
  const kept: string[] = []
  for (const build of messages.toReversed()) {
    const text = take(build, kept.length === 0 ? NEWEST_TEXT_BYTES : [TEXT_BYTES])
    if (text === null) break
    kept.unshift(text)
  }
  return `[${[head, ...kept].filter(text => text !== null).join(',')}]`
}
