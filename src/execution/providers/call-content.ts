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
const NEWEST_TEXT_BYTES = [6144, TEXT_BYTES, 512]

/** Most bytes of a text of the newest message if its oldest parts are omitted. */
const LEAST_TEXT_BYTES = 128

/** Most bytes of an ID, a name or a type. */
const NAME_BYTES = 128

/** Parts of a message that are considered, the newest: more do not fit. */
const MAX_PARTS = 30

/** Masks and cuts what a message contains. */
type Cut = { text(text: string): string; json(value: unknown): unknown; name(text: string): string }
type Part = (cut: Cut) => object
type Message = { role: string; parts: readonly Part[]; finish_reason?: string }

/** Returns the messages of a request. */
export const inputContent = (
  { system, messages }: ModelRequest,
  secrets: readonly string[],
): Record<string, string> => ({
  [ATTRIBUTE.inputMessages]: fitted(
    secrets,
    newestFirst(messages),
    system ? { role: 'system', parts: [textPart(system)] } : null,
  ),
})

/** Returns the message of an answer. */
export const outputContent = (answer: ModelAnswer, secrets: readonly string[]): Record<string, string> => ({
  [ATTRIBUTE.outputMessages]: fitted(secrets, [
    {
      role: 'assistant',
      parts: [
        ...(answer.reasoning ? [reasoningPart(answer.reasoning)] : []),
        ...(answer.text ? [textPart(answer.text)] : []),
        ...answer.tool_calls.slice(-MAX_PARTS).map(({ id, tool_name, args }) => callPart(id, tool_name, args)),
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

const textPart =
  (text: string): Part =>
  cut => ({ type: 'text', content: cut.text(text) })

const reasoningPart =
  (text: string): Part =>
  cut => ({ type: 'reasoning', content: cut.text(text) })

const callPart =
  (id: string, name: string, args: unknown): Part =>
  cut => ({ type: 'tool_call', id: cut.name(id), name: cut.name(name), arguments: cut.json(args) })

function* newestFirst(messages: readonly PromptMessage[]): Iterable<Message> {
  for (const message of messages.toReversed()) yield messageOf(message)
}

function messageOf({ role, content }: PromptMessage): Message {
  if (typeof content === 'string') return { role, parts: [textPart(content)] }
  const parts = content.slice(-MAX_PARTS).map((part): Part => {
    switch (part.type) {
      case 'text':
        return textPart(part.text)
      case 'attachment':
        return cut => ({ type: 'attachment', mime_type: cut.name(part.media_type) })
      case 'tool_call':
        return callPart(part.tool_call_id, part.tool_name, part.args)
      default:
        return cut => ({
          type: 'tool_call_response',
          id: cut.name(part.tool_call_id),
          response: cut.json(part.error ?? part.result),
        })
    }
  })
  return { role, parts }
}

function cutTo(bytes: number, secrets: readonly string[]): Cut {
  const cut = (text: string, limit: number) => redactCredentials(beginningOf(text, secrets, limit))
  return {
    text: text => cut(text, bytes),
    name: text => cut(text, NAME_BYTES),
    // As text if it is cut.
    json(value) {
      const text = cut(beginningOfJson(value, bytes + 1), bytes)
      try {
        return JSON.parse(text)
      } catch {
        return text
      }
    },
  }
}

/** Returns the JSON of a value, or at least its first `characters`: values may have megabytes. */
function beginningOfJson(value: unknown, characters: number): string {
  let json = ''
  const add = (item: unknown): void => {
    if (typeof item === 'string') json += JSON.stringify(item.slice(0, characters))
    else if (Array.isArray(item)) addAll('[', item.values(), ']', add)
    else if (item === null || typeof item !== 'object' || 'toJSON' in item) json += JSON.stringify(item) ?? 'null'
    else
      addAll('{', definedEntries(item), '}', ([key, each]) => {
        json += `${JSON.stringify(key.slice(0, characters))}:`
        add(each)
      })
  }
  const addAll = <T>(open: string, items: Iterable<T>, close: string, addOne: (item: T) => void): void => {
    let separator = open
    for (const item of items) {
      json += separator
      separator = ','
      if (json.length >= characters) return
      addOne(item)
    }
    json += separator === open ? open + close : close
  }
  add(value)
  return json
}

function* definedEntries(object: object): Iterable<[key: string, value: unknown]> {
  for (const key in object) {
    const value: unknown = object[key as keyof typeof object]
    if (value !== undefined) yield [key, value]
  }
}

/**
 * Returns the beginning of a text with its secrets masked. It ends between words: for the receiver of a project, further secrets
 * are masked, of which a part would not be found.
 */
function beginningOf(text: string, secrets: readonly string[], bytes: number): string {
  // One character more shows that the text is cut, without a walk of all of it.
  const start = text.slice(0, bytes + 1)
  const masked = maskSecrets(start, secrets, bytes)
  if (Buffer.byteLength(start) <= bytes) return masked
  let end = masked.length
  while (end > 0 && isOfWord(masked.charCodeAt(end - 1))) end--
  return masked.slice(0, end)
}

/** Whether a character is of ASCII and visible. */
const isOfWord = (code: number): boolean => code > 0x20 && code < 0x7f

/**
 * Returns messages, given from the newest, as JSON of at most MAX_BYTES: texts are cut, then the oldest parts of the newest
 * message omitted, and the oldest messages, but not `first`.
 */
function fitted(secrets: readonly string[], messages: Iterable<Message>, first: Message | null = null): string {
  let room = MAX_BYTES - '[]'.length
  const take = (message: Message, bytes: number, omitsParts = false): string | null => {
    const text = jsonOf(message, cutTo(bytes, secrets), room - ','.length, omitsParts)
    if (text !== null) room -= Buffer.byteLength(text) + ','.length
    return text
  }
  const takeNewest = (message: Message): string | null => {
    for (const bytes of NEWEST_TEXT_BYTES) {
      const text = take(message, bytes)
      if (text !== null) return text
    }
    return take(message, LEAST_TEXT_BYTES, true)
  }
  const head = first && take(first, TEXT_BYTES)
  const kept: string[] = []
  for (const message of messages) {
    const text = kept.length === 0 ? takeNewest(message) : take(message, TEXT_BYTES)
    if (text === null) break
    kept.unshift(text)
  }
  return `[${[head, ...kept].filter(text => text !== null).join(',')}]`
}

/** Returns a message as JSON; null if it has more bytes than `limit`, if `omitsParts` even with its newest part only. */
function jsonOf({ role, parts, finish_reason }: Message, cut: Cut, limit: number, omitsParts: boolean): string | null {
  const kept: object[] = []
  let left = limit - JSON.stringify({ role, parts: kept, finish_reason }).length
  for (const part of parts.toReversed()) {
    const made = part(cut)
    left -= Buffer.byteLength(JSON.stringify(made)) + ','.length
    if (left < 0 && !(omitsParts && kept.length > 0)) return null
    if (left < 0) break
    kept.unshift(made)
  }
  return JSON.stringify({ role, parts: kept, finish_reason })
}
