import { countsOf, type UsageSums } from '#control/usage/totals.ts'
import { argumentsOf } from '#conversation/chats/openai-format.ts'
import { eventMessage } from '#core/api/event-stream.ts'
import { generationKind } from '#execution/generations/model.ts'
import type { StepLogprobs } from '#execution/generations/request/turn-result.ts'
import type { Annotation, ModelAnswer, ModelUsage, TokenLogprob } from '#execution/providers/model-messages.ts'
import { shownUsage, type Visibility } from './chat-format.ts'
import type { StepEnd } from './turn-format.ts'

/**
 * IDs of answers and their items follow from the ID of the generation. An answer that follows results of the client's tools
 * has the number of the earlier steps too: clients merge messages with the same ID.
 */
export const answerId = (prefix: 'resp' | 'chatcmpl', generationId: string, afterStep: number): string =>
  `${prefix}_${suffixOf(generationId)}${afterStep > 0 ? `_${afterStep}` : ''}`
/** Returns the part of an ID that the IDs of its items have too. */
export const suffixOf = (id: string): string => id.slice(id.indexOf('_') + 1).split('_')[0]
const messageId = (suffix: string, step: number): string => `msg_${suffix}_${step}`
const callItemId = (suffix: string, callId: string): string => `fc_${suffix}_${callId}`

const RESPONSE_ID = /^resp_([0-9a-hjkmnp-tv-z]{26})(?:_([1-9]\d{0,5}))?$/
const ITEM_ID = /^(msg|fc)_([0-9a-hjkmnp-tv-z]{26})_(.+)$/

/** Returns the generation of a response ID, and its steps before the response; null for another ID. */
export const parseResponseId = (id: string): { generation_id: string; afterStep: number } | null => {
  const found = RESPONSE_ID.exec(id)
  return found && { generation_id: `${generationKind.prefix}_${found[1]}`, afterStep: Number(found[2] ?? 0) }
}

/** Returns the generation and the part of it that an item ID names, or null. */
export function parseItemId(id: string): { generation_id: string; step?: number; call_id?: string } | null {
  const found = ITEM_ID.exec(id)
  if (!found) return null
  const generation_id = `${generationKind.prefix}_${found[2]}`
  return found[1] === 'msg' ? { generation_id, step: Number(found[3]) } : { generation_id, call_id: found[3] }
}

type ToolCall = ModelAnswer['tool_calls'][number]

/** Returns the pages that a text cites in the format of the API. */
const annotationItems = (annotations: readonly Annotation[] = []): object[] =>
  annotations.map(({ type, url, title, start_index, end_index }) => ({
    type,
    url,
    title: title ?? url,
    start_index,
    end_index,
  }))

/** What a text cites, and the probabilities of its tokens. */
type TextParts = { annotations?: readonly Annotation[]; logprobs?: readonly TokenLogprob[] }

export const messageItem = (
  suffix: string,
  step: number,
  text: string,
  status = 'completed',
  { annotations, logprobs = [] }: TextParts = {},
) => ({
  id: messageId(suffix, step),
  type: 'message',
  status,
  role: 'assistant',
  content: [{ type: 'output_text', text, annotations: annotationItems(annotations), logprobs }],
})

const callItem = (suffix: string, { id, tool_name, args }: ToolCall) => ({
  id: callItemId(suffix, id),
  type: 'function_call',
  status: 'completed',
  call_id: id,
  name: tool_name,
  arguments: argumentsOf(args),
})

type Format = {
  type: string
  name?: string | null
  description?: string | null
  schema?: object
  strict?: boolean | null
}
type Tool = {
  type: string
  name?: string
  description?: string | null
  parameters?: object | null
  strict?: boolean | null
}

/** The settings of a request that its response repeats, as far as they were sent. */
type RequestSettings = {
  instructions?: string | null
  max_output_tokens?: number | null
  parallel_tool_calls?: boolean | null
  reasoning?: { effort?: string | null } | null
  temperature?: number | null
  top_p?: number | null
  top_logprobs?: number | null
  text?: { format?: Format | null; verbosity?: string | null } | null
  tools?: readonly Tool[] | null
  tool_choice?: string | object | null
  metadata?: Record<string, unknown> | null
  service_tier?: string | null
  prompt_cache_key?: string | null
  safety_identifier?: string | null
  user?: string | { id: string } | null
}

const formatEcho = ({ type, name, description, schema, strict }: Format) =>
  type === 'json_schema'
    ? { type, name: name ?? 'response', description: description ?? null, schema, strict: strict ?? false }
    : { type }

const toolEcho = ({ name, description, parameters, strict }: Tool) =>
  name === undefined
    ? []
    : {
        type: 'function',
        name,
        description: description ?? null,
        parameters: parameters ?? null,
        strict: strict ?? null,
      }

/** Returns the settings of a request as its response repeats them, with the defaults of the API. */
export const requestEcho = (request: RequestSettings) => ({
  instructions: request.instructions ?? null,
  max_output_tokens: request.max_output_tokens ?? null,
  parallel_tool_calls: request.parallel_tool_calls ?? true,
  reasoning: { effort: request.reasoning?.effort ?? null, summary: null },
  temperature: request.temperature ?? 1,
  top_p: request.top_p ?? 1,
  top_logprobs: request.top_logprobs ?? 0,
  text: {
    format: formatEcho(request.text?.format ?? { type: 'text' }),
    ...(request.text?.verbosity && { verbosity: request.text.verbosity }),
  },
  tools: (request.tools ?? []).flatMap(toolEcho),
  tool_choice: request.tool_choice ?? 'auto',
  metadata: request.metadata ?? {},
  service_tier: request.service_tier ?? 'default',
  prompt_cache_key: request.prompt_cache_key ?? null,
  safety_identifier: request.safety_identifier ?? null,
  user: (typeof request.user === 'object' ? request.user?.id : request.user) ?? null,
})

/** Fields of the request that a response repeats. */
export type ResponseHead = {
  id: string
  created_at: number
  model: string
  previous_response_id: string | null
  store: boolean
  background: boolean
} & ReturnType<typeof requestEcho>

function usageOf(usage: ModelUsage | null, visible: Visibility) {
  const shown = shownUsage(usage, visible)
  return {
    input_tokens: shown.prompt_tokens,
    input_tokens_details: shown.prompt_tokens_details,
    output_tokens: shown.completion_tokens,
    output_tokens_details: shown.completion_tokens_details,
    total_tokens: shown.total_tokens,
  }
}

export const usageOfTotals = (usage: UsageSums | null): ModelUsage | null => usage && countsOf(usage)

type ResponseEnd = {
  status: 'completed' | 'incomplete' | 'failed' | 'in_progress' | 'queued' | 'cancelled'
  output: object[]
  usage?: ModelUsage | null
  error?: { code: string; message: string } | null
  /** Default now. */
  completed_at?: string | null
}

/** Returns a response in a state. */
export const responseObject = (head: ResponseHead, end: ResponseEnd, visible: Visibility) => ({
  ...head,
  object: 'response',
  status: end.status,
  completed_at: end.status === 'completed' ? seconds(end.completed_at) : null,
  error: end.error ?? null,
  incomplete_details: end.status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
  max_tool_calls: null,
  output: end.output,
  truncation: 'disabled',
  presence_penalty: 0,
  frequency_penalty: 0,
  usage: end.usage === undefined ? null : usageOf(end.usage, visible),
})

/** Returns a time in seconds; now without one. */
export const seconds = (time?: string | null): number => Math.floor((time ? Date.parse(time) : Date.now()) / 1000)

export const statusOf = (finish_reason: string | null): 'completed' | 'incomplete' =>
  finish_reason === 'length' ? 'incomplete' : 'completed'

/** The end of an answer, with its texts by step. */
type AnswerEnd = Pick<ModelAnswer, 'tool_calls' | 'finish_reason' | 'usage' | 'annotations'> & {
  texts: readonly string[]
  /** Of a completion, or of the steps of a turn. */
  logprobs?: readonly (TokenLogprob | StepLogprobs)[]
}

/** Returns the probabilities of the tokens of one text: a completion has one. */
const logprobsOf = ({ logprobs = [] }: Pick<AnswerEnd, 'logprobs'>, step: number): TokenLogprob[] =>
  logprobs.flatMap(each => ('tokens' in each ? (each.step === step ? each.tokens : []) : each))

/**
 * Returns the items of an answer; the last text of an incomplete answer is incomplete.
 * @param afterStep steps before the request
 */
export const outputItems = (suffix: string, answer: AnswerEnd, afterStep: number): object[] => [
  ...answer.texts.flatMap((text, index) => {
    const isLast = index === answer.texts.length - 1
    const status = isLast ? statusOf(answer.finish_reason) : 'completed'
    const step = afterStep + index + 1
    const parts = { annotations: isLast ? answer.annotations : undefined, logprobs: logprobsOf(answer, step) }
    return text === '' ? [] : messageItem(suffix, step, text, status, parts)
  }),
  ...answer.tool_calls.map(call => callItem(suffix, call)),
]

type EventOptions = {
  failed(error: unknown): object | null
  /** Events up to this one are omitted. */
  after?: number
  /** Steps before the request. */
  afterStep?: number
  /** Of a turn that ended before the stream began. Default now. */
  completed_at?: string | null
}

/** Returns functions that format the events of a streamed response. */
export function responseEvents(
  head: ResponseHead,
  visible: Visibility,
  { failed, after = -1, afterStep = 0, completed_at }: EventOptions,
) {
  const suffix = suffixOf(head.id)
  const output: object[] = []
  let sequence = 0
  let step = afterStep + 1
  let text = ''
  let isOpen = false
  const event = (type: string, data: object, isLast = false): string => {
    const sequence_number = sequence++
    // The last event is never omitted: rebuilt events are fewer than those that were sent once.
    if (sequence_number <= after && !isLast) return ''
    return eventMessage(null, type, JSON.stringify({ type, sequence_number, ...data }))
  }
  const opening = (): string => {
    if (sequence > 0) return ''
    const response = responseObject(head, { status: 'in_progress', output: [] }, visible)
    return event('response.created', { response }) + event('response.in_progress', { response })
  }
  const at = () => ({ item_id: messageId(suffix, step), output_index: output.length, content_index: 0 })
  const part = (content: string) => ({ type: 'output_text', text: content, annotations: [], logprobs: [] })
  const openText = (): string => {
    if (isOpen) return ''
    isOpen = true
    const item = { ...messageItem(suffix, step, ''), status: 'in_progress', content: [] }
    return (
      event('response.output_item.added', { output_index: output.length, item }) +
      event('response.content_part.added', { ...at(), part: part('') })
    )
  }
  const closeText = (status: string, parts: TextParts): string => {
    if (!isOpen) return ''
    isOpen = false
    const item = messageItem(suffix, step, text, status, parts)
    const added = item.content[0].annotations.map((annotation, annotation_index) =>
      event('response.output_text.annotation.added', { ...at(), annotation_index, annotation }),
    )
    const events =
      added.join('') +
      event('response.output_text.done', { ...at(), text, logprobs: item.content[0].logprobs }) +
      event('response.content_part.done', { ...at(), part: item.content[0] }) +
      event('response.output_item.done', { output_index: output.length, item })
    output.push(item)
    text = ''
    return events
  }
  const callEvents = (call: ToolCall): string => {
    const item = callItem(suffix, call)
    const place = { item_id: item.id, output_index: output.length }
    const events =
      event('response.output_item.added', {
        output_index: output.length,
        item: { ...item, status: 'in_progress', arguments: '' },
      }) +
      event('response.function_call_arguments.delta', { ...place, delta: item.arguments }) +
      event('response.function_call_arguments.done', { ...place, name: item.name, arguments: item.arguments }) +
      event('response.output_item.done', { output_index: output.length, item })
    output.push(item)
    return events
  }
  const chunks = (...parts: string[]): string[] => parts.filter(each => each !== '')
  return {
    text: (delta: string): string => {
      text += delta
      return opening() + openText() + event('response.output_text.delta', { ...at(), delta, logprobs: [] })
    },
    *step({ finish_reason = null, ...parts }: StepEnd): Generator<string> {
      yield* chunks(closeText(statusOf(finish_reason), parts))
      step++
    },
    *end(answer: Omit<AnswerEnd, 'texts'>): Generator<string> {
      const status = statusOf(answer.finish_reason)
      const parts = { annotations: answer.annotations, logprobs: logprobsOf(answer, step) }
      yield* chunks(opening(), closeText(status, parts), ...answer.tool_calls.map(callEvents))
      const response = responseObject(head, { status, output, usage: answer.usage, completed_at }, visible)
      yield* chunks(event(`response.${status}`, { response }, true))
    },
    failed(error: unknown): string | null {
      const body = failed(error) as { error: { code: string; message: string } } | null
      if (!body) return null
      const { code, message } = body.error
      const response = responseObject(head, { status: 'failed', output, error: { code, message } }, visible)
      return opening() + event('response.failed', { response }, true)
    },
  }
}
