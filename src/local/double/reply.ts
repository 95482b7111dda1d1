import { hash } from 'node:crypto'
import type { DoubleRequest, RequestBody } from './request.ts'
import { smallestValue } from './schema.ts'
import type { Reply } from './script.ts'
import { checkDirective } from './script.ts'
import { fillText, fillValue } from './template.ts'

/** A tool call in the format of the OpenAI API. */
export type DoubleToolCall = { id: string; type: 'function'; function: { name: string; arguments: string } }

/** The parts of a chat answer, ready to be sent whole or in pieces. */
export type DoubleReply = {
  content: string | null
  /** Reasoning before the content; undefined for none. */
  reasoning: string | undefined
  /** The content as the pieces of a stream. */
  pieces: string[]
  calls: DoubleToolCall[]
  finish: string
  model: string
  /** Undefined if the script omits it. */
  usage: RequestBody | undefined
}

/** Returns the ID of the tool call at an index of the answer. */
export type CallId = (index: number) => string

/** Counts the tokens of a text: a quarter of its UTF-8 bytes, rounded up. */
export function countTokens(text: string): number {
  return Math.ceil(Buffer.byteLength(text) / 4)
}

/** Composes an answer from a reply; with `literal`, templates are not filled. */
export function composeReply(reply: Reply, request: DoubleRequest, callId: CallId, literal = false): DoubleReply {
  const value = (part: unknown) => (literal ? part : fillValue(part, request))
  const calls = (reply.tool_calls ?? []).map(
    (call, index): DoubleToolCall => ({
      id: call.id ?? callId(index),
      type: 'function',
      function: { name: call.name, arguments: call.raw ?? JSON.stringify(value(call.args ?? {})) },
    }),
  )
  let content: string | undefined
  if (reply.chunks) content = reply.chunks.join('')
  else if (reply.object !== undefined) content = JSON.stringify(value(reply.object))
  else if (reply.text !== undefined) content = literal ? reply.text : fillText(reply.text, request)
  else if (calls.length === 0) content = ''
  return {
    content: content ?? null,
    reasoning: reply.reasoning,
    pieces: reply.chunks ?? wordPieces(content ?? '', reply.chunk_words ?? 1),
    calls,
    finish: reply.finish ?? (calls.length > 0 ? 'tool_calls' : 'stop'),
    model: reply.model ?? request.requested,
    usage: reply.usage === null ? undefined : usageOf(reply.usage ?? {}, request, content ?? '', calls),
  }
}

/** Splits a text into pieces of `count` words; spaces belong to the preceding word. */
function wordPieces(text: string, count: number): string[] {
  if (text === '') return []
  if (text.trim() === '') return [text]
  const words = text.match(/(?:^\s+)?\S+\s*/g) ?? []
  if (count === 1) return words
  const pieces: string[] = []
  for (let index = 0; index < words.length; index += count) pieces.push(words.slice(index, index + count).join(''))
  return pieces
}

function usageOf(
  given: NonNullable<Reply['usage']>,
  request: DoubleRequest,
  content: string,
  calls: DoubleToolCall[],
): RequestBody {
  const prompt = given.prompt_tokens ?? promptTokens(request)
  const completion =
    given.completion_tokens ??
    calls.reduce((sum, call) => sum + countTokens(call.function.name + call.function.arguments), countTokens(content))
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: given.cached_tokens ?? 0 },
    completion_tokens_details: { reasoning_tokens: given.reasoning_tokens ?? 0 },
  }
}

function promptTokens(request: DoubleRequest): number {
  const sum = request.messages.reduce((total, message) => total + countTokens(message.text) + 4, 0)
  return request.tools.length > 0 ? sum + countTokens(JSON.stringify(request.body.tools)) : sum
}

/** Returns the body of an answer without streaming. */
export function completionBody(answer: DoubleReply, request: DoubleRequest, empty = false): RequestBody {
  const message: RequestBody = { role: 'assistant', content: answer.content }
  if (answer.reasoning !== undefined) message.reasoning_content = answer.reasoning
  if (answer.calls.length > 0) message.tool_calls = answer.calls
  return {
    ...head(answer, request, 'chat.completion'),
    choices: empty ? [] : [{ index: 0, message, logprobs: null, finish_reason: answer.finish }],
    ...(answer.usage && { usage: answer.usage }),
  }
}

/**
 * Returns the frames of a streamed answer. Its pieces, between the first and last frames, can be counted and delayed.
 */
export function replyFrames(answer: DoubleReply, request: DoubleRequest, empty = false) {
  const base = head(answer, request, 'chat.completion.chunk')
  const frame = (delta: RequestBody, finish: string | null = null) =>
    sseFrame({ ...base, choices: [{ index: 0, delta, finish_reason: finish }] })
  const options = request.body.stream_options as RequestBody | null | undefined
  const usage =
    options?.include_usage === true && answer.usage ? sseFrame({ ...base, choices: [], usage: answer.usage }) : ''
  const done = 'data: [DONE]\n\n'
  if (empty) return { first: sseFrame({ ...base, choices: [] }), pieces: [], last: usage + done }

  const calls = answer.calls.flatMap((call, index) => {
    const { name, arguments: text } = call.function
    const half = Math.ceil(text.length / 2)
    const part = (piece: string) => frame({ tool_calls: [{ index, function: { arguments: piece } }] })
    return [
      frame({ tool_calls: [{ index, id: call.id, type: 'function', function: { name, arguments: '' } }] }),
      part(text.slice(0, half)),
      part(text.slice(half)),
    ]
  })
  return {
    first:
      frame({ role: 'assistant', content: answer.calls.length > 0 && !answer.content ? null : '' }) +
      (answer.reasoning === undefined ? '' : frame({ reasoning_content: answer.reasoning })),
    pieces: [...answer.pieces.map(content => frame({ content })), ...calls],
    last: frame({}, answer.finish) + usage + done,
  }
}

/** Returns a server-sent event with a JSON value. */
export function sseFrame(value: unknown): string {
  return `data: ${JSON.stringify(value)}\n\n`
}

function head(answer: DoubleReply, request: DoubleRequest, object: string): RequestBody {
  return {
    id: `chatcmpl-${request.lane}-${request.call}`,
    object,
    created: 1_700_000_000 + request.call,
    model: answer.model,
    system_fingerprint: 'double',
  }
}

/** Returns IDs for tool calls of scripts and default replies. */
export function laneCallId(request: DoubleRequest): CallId {
  return index => `call_${request.lane}_${request.call}_${index}`
}

/** Returns IDs for tool calls of inline directives, which depend only on the body of the request. */
export function bodyCallId(raw: string): CallId {
  return index => `call_${hash('sha256', raw + index, 'hex').slice(0, 12)}`
}

const mark = '@double '

/**
 * Reads the directive in the last user text: `@double ` and one JSON value on the same line, a reply or a list of them.
 * The reply at index k is used, where k is the number of assistant messages after that user message; the last one
 * repeats. Returns undefined without a directive, and `problems` for an invalid one.
 */
export function inlineReply(
  request: DoubleRequest,
): { reply: Reply; index: number; problems?: never } | { problems: string[]; reply?: never } | undefined {
  const at = request.user.indexOf(mark)
  if (at < 0) return undefined
  const line = request.user.slice(at + mark.length).split(/\r?\n/, 1)[0]
  let value: unknown
  try {
    value = JSON.parse(jsonPrefix(line))
  } catch (error) {
    return { problems: [`document: ${(error as Error).message}`] }
  }
  const { replies, problems } = checkDirective(value)
  if (!replies) return { problems }
  const from = request.messages.findLastIndex(each => each.role === 'user')
  const answered = request.messages.slice(from).filter(each => each.role === 'assistant').length
  const index = Math.min(answered, replies.length - 1)
  return { reply: replies[index], index }
}

/** Returns the JSON object or array at the start of a line, without the text after it, such as a closing tag. */
function jsonPrefix(line: string): string {
  const text = line.trimStart()
  let depth = 0
  let quoted = false
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at]
    if (quoted) {
      if (char === '\\') at += 1
      else if (char === '"') quoted = false
    } else if (char === '"') quoted = true
    else if (char === '{' || char === '[') depth += 1
    else if ((char === '}' || char === ']') && --depth === 0) return text.slice(0, at + 1)
  }
  return text
}

/**
 * Returns the default reply: a call of the forced tool, the smallest value of the requested schema, an empty list where the
 * instructions require a list alone, the first text where they require a title, or an echo of the user's text. Contains no
 * templates.
 */
export function defaultReply(request: DoubleRequest): Reply {
  const forced = forcedTool(request)
  if (forced) return { tool_calls: [{ name: forced.name, args: smallestArguments(forced.parameters) }] }
  if (request.schema !== undefined) return { object: smallestValue(request.schema) }
  if (request.system.includes('Answer with a JSON array')) return { text: '[]' }
  if (request.system.startsWith('Write a title')) return { text: firstTextOf(request.user) }
  return { text: `echo: ${request.user}` }
}

/** Returns the text of the first JSON line of a transcript, as a person would name it. */
function firstTextOf(transcript: string): string {
  const text = /"text":("(?:[^"\\]|\\.)*")/.exec(transcript)?.[1]
  return text === undefined ? 'A conversation' : String(JSON.parse(text))
}

function forcedTool(request: DoubleRequest): { name: string; parameters: unknown } | undefined {
  const choice = request.toolChoice
  if (choice === 'required') return request.tools[0]
  if (typeof choice === 'string') return undefined
  return request.tools.find(tool => tool.name === choice.name) ?? { name: choice.name, parameters: {} }
}

/** Arguments are always an object, also for a tool without a schema. */
function smallestArguments(parameters: unknown): unknown {
  const value = smallestValue(parameters)
  return typeof value === 'object' && value !== null ? value : {}
}
