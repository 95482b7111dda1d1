import { countsOf, type UsageSums } from '../../control/usage/totals.ts'
import { argumentsOf } from '../../conversation/chats/openai-format.ts'
import { eventMessage } from '../../core/api/event-stream.ts'
import type { ModelAnswer, ModelUsage } from '../../execution/providers/model-messages.ts'
import { shownUsage, type Visibility } from './chat-format.ts'

/** IDs of responses and their items follow from the ID of the generation. */
export const responseId = (generationId: string): string => `resp_${suffixOf(generationId)}`
const suffixOf = (id: string): string => id.slice(id.indexOf('_') + 1)
const messageId = (suffix: string, step: number): string => `msg_${suffix}_${step}`
const callItemId = (suffix: string, callId: string): string => `fc_${suffix}_${callId}`

const RESPONSE_ID = /^resp_([0-9a-hjkmnp-tv-z]{26})$/
const ITEM_ID = /^(msg|fc)_([0-9a-hjkmnp-tv-z]{26})_(.+)$/

/** Returns the generation of a response ID, or null. */
export const generationOfResponse = (id: string): string | null => {
  const found = RESPONSE_ID.exec(id)
  return found && `gen_${found[1]}`
}

/** Returns the generation and the part of it that an item ID names, or null. */
export function parseItemId(id: string): { generation_id: string; step?: number; call_id?: string } | null {
  const found = ITEM_ID.exec(id)
  if (!found) return null
  const generation_id = `gen_${found[2]}`
  return found[1] === 'msg' ? { generation_id, step: Number(found[3]) } : { generation_id, call_id: found[3] }
}

type ToolCall = ModelAnswer['tool_calls'][number]

export const messageItem = (suffix: string, step: number, text: string) => ({
  id: messageId(suffix, step),
  type: 'message',
  status: 'completed',
  role: 'assistant',
  content: [{ type: 'output_text', text, annotations: [], logprobs: [] }],
})

export const callItem = (suffix: string, { id, tool_name, args }: ToolCall) => ({
  id: callItemId(suffix, id),
  type: 'function_call',
  status: 'completed',
  call_id: id,
  name: tool_name,
  arguments: argumentsOf(args),
})

/** Fields of the request that a response repeats. */
export type ResponseHead = {
  id: string
  created_at: number
  model: string
  previous_response_id: string | null
  store: boolean
  background: boolean
}

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
  finish_reason?: string
}

/** Returns a response in a state. */
export const responseObject = (head: ResponseHead, end: ResponseEnd, visible: Visibility) => ({
  ...head,
  object: 'response',
  status: end.status,
  completed_at: end.status === 'completed' ? Math.floor(Date.now() / 1000) : null,
  error: end.error ?? null,
  incomplete_details: end.status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
  instructions: null,
  max_output_tokens: null,
  max_tool_calls: null,
  output: end.output,
  parallel_tool_calls: true,
  reasoning: { effort: null, summary: null },
  safety_identifier: null,
  service_tier: 'default',
  temperature: 1,
  text: { format: { type: 'text' } },
  tool_choice: 'auto',
  tools: [],
  top_logprobs: 0,
  top_p: 1,
  truncation: 'disabled',
  presence_penalty: 0,
  frequency_penalty: 0,
  usage: end.usage === undefined ? null : usageOf(end.usage, visible),
  user: null,
  metadata: {},
})

export const statusOf = (finish_reason: string): 'completed' | 'incomplete' =>
  finish_reason === 'length' ? 'incomplete' : 'completed'

/** The end of an answer, with its texts by step. */
export type AnswerEnd = Pick<ModelAnswer, 'tool_calls' | 'finish_reason' | 'usage'> & { texts: readonly string[] }

/** Returns the items of an answer. @param afterStep steps before the request */
export const outputItems = (suffix: string, { texts, tool_calls }: AnswerEnd, afterStep: number): object[] => [
  ...texts.flatMap((text, index) => (text === '' ? [] : messageItem(suffix, afterStep + index + 1, text))),
  ...tool_calls.map(call => callItem(suffix, call)),
]

/** Returns functions that format the events of a streamed response. Events up to `after` are omitted. */
export function responseEvents(
  head: ResponseHead,
  visible: Visibility,
  { failed, after = -1, afterStep = 0 }: { failed(error: unknown): object | null; after?: number; afterStep?: number },
) {
  const suffix = suffixOf(head.id)
  const output: object[] = []
  let sequence = 0
  let step = afterStep + 1
  let text = ''
  let isOpen = false
  const event = (type: string, data: object): string => {
    const sequence_number = sequence++
    if (sequence_number <= after) return ''
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
  const closeText = (): string => {
    if (!isOpen) return ''
    isOpen = false
    const item = messageItem(suffix, step, text)
    const events =
      event('response.output_text.done', { ...at(), text, logprobs: [] }) +
      event('response.content_part.done', { ...at(), part: part(text) }) +
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
    *step(): Generator<string> {
      yield* chunks(closeText())
      step++
    },
    *end(answer: Pick<ModelAnswer, 'tool_calls' | 'finish_reason' | 'usage'>): Generator<string> {
      yield* chunks(opening(), closeText(), ...answer.tool_calls.map(callEvents))
      const status = statusOf(answer.finish_reason)
      const response = responseObject(head, { status, output, usage: answer.usage }, visible)
      yield* chunks(event(`response.${status}`, { response }))
    },
    failed(error: unknown): string | null {
      const body = failed(error) as { error: { code: string; message: string } } | null
      if (!body) return null
      const { code, message } = body.error
      const response = responseObject(head, { status: 'failed', output, error: { code, message } }, visible)
      return opening() + event('response.failed', { response })
    },
  }
}
