import { anthropicRules, PAUSED } from './anthropic-rules.ts'
import { cacheUse } from './caching.ts'
import type { Frame } from './frames.ts'
import { type Answer, parsedArgs, pieces } from './plan.ts'
import { seal, sign } from './signatures.ts'
import { type Failure, requestId, type Simulator } from './simulator.ts'

const TYPES: Record<number, string> = {
  401: 'authentication_error',
  429: 'rate_limit_error',
  500: 'api_error',
  529: 'overloaded_error',
}

const errorBody = ({ status, message, type }: Failure) => ({
  type: 'error',
  error: { type: type ?? TYPES[status] ?? 'invalid_request_error', message },
})

/** Blocks of reasoning of an answer. */
function thinking({ reasoning, redacted }: Answer): object[] {
  if (reasoning === null) return []
  return redacted
    ? [{ type: 'redacted_thinking', data: seal(reasoning) }]
    : [{ type: 'thinking', thinking: reasoning, signature: sign(reasoning) }]
}

/** Blocks of the searches that the vendor makes. */
const searchBlocks = ({ searches }: Answer): object[] =>
  searches.flatMap(({ id, query, limit, found }) => [
    { type: 'server_tool_use', id, name: 'web_search', input: { query, limit } },
    ...(found === undefined
      ? []
      : [
          {
            type: 'web_search_tool_result',
            tool_use_id: id,
            content: [
              { type: 'web_search_result', url: found, title: query, encrypted_content: seal(found), page_age: null },
            ],
          },
        ]),
  ])

const stopDetails = ({ refusal }: Answer) => (refusal ? { stop_details: { type: 'refusal', ...refusal } } : {})

const stopReason = ({ finish, calls }: Answer) => finish ?? (calls.length > 0 ? 'tool_use' : 'end_turn')

const outputOf = (usage: Answer['usage']) => ({
  output_tokens: usage?.output ?? 0,
  ...(usage && usage.reasoning > 0 && { output_tokens_details: { thinking_tokens: usage.reasoning } }),
})

const usage = ({ usage, billed }: Answer) => ({
  input_tokens: usage?.input ?? 0,
  cache_creation_input_tokens: usage?.written ?? 0,
  cache_read_input_tokens: usage?.cached ?? 0,
  cache_creation: {
    ephemeral_5m_input_tokens: (usage?.written ?? 0) - (billed.written_1h ?? 0),
    ephemeral_1h_input_tokens: billed.written_1h ?? 0,
  },
  ...outputOf(usage),
  service_tier: billed.tier ?? 'standard',
})

function message(answer: Answer, model: string) {
  const calls = answer.calls.map(({ id, name, args }) => ({ type: 'tool_use', id, name, input: parsedArgs(args) }))
  return {
    id: `msg_${answer.id}`,
    type: 'message',
    role: 'assistant',
    model: answer.billed.model ?? model,
    content: [
      ...thinking(answer),
      ...searchBlocks(answer),
      ...(answer.text ? [{ type: 'text', text: answer.text }] : []),
      ...calls,
    ],
    stop_reason: stopReason(answer),
    stop_sequence: null,
    ...stopDetails(answer),
    usage: { ...usage(answer), ...searchesOf(answer) },
  }
}

const searchesOf = ({ billed: { searches } }: Answer) =>
  searches === undefined ? {} : { server_tool_use: { web_search_requests: searches } }

/** Frames of a block: its start, its deltas, its end. */
const block = (index: number, content_block: object, deltas: object[]): Frame[] => [
  named({ type: 'content_block_start', index, content_block }),
  ...deltas.map(delta => named({ type: 'content_block_delta', index, delta })),
  named({ type: 'content_block_stop', index }),
]

const named = (data: { type: string; [key: string]: unknown }): Frame => ({ event: data.type, data })

function contentFrames(answer: Answer): Frame[] {
  const { reasoning, redacted, chunks, calls } = answer
  const parts: [object, object[]][] = []
  if (reasoning !== null && redacted) parts.push([thinking(answer)[0]!, []])
  else if (reasoning !== null)
    parts.push([
      { type: 'thinking', thinking: '', signature: '' },
      [
        ...(reasoning ? [{ type: 'thinking_delta', thinking: reasoning }] : []),
        { type: 'signature_delta', signature: sign(reasoning) },
      ],
    ])
  for (const block of searchBlocks(answer) as any[])
    parts.push(
      block.type === 'server_tool_use'
        ? [
            { ...block, input: {} },
            pieces(JSON.stringify(block.input)).map(partial_json => ({ type: 'input_json_delta', partial_json })),
          ]
        : [block, []],
    )
  if (chunks.length > 0) parts.push([{ type: 'text', text: '' }, chunks.map(text => ({ type: 'text_delta', text }))])
  for (const { id, name, args } of calls)
    parts.push([
      { type: 'tool_use', id, name, input: {} },
      ['', ...pieces(args)].map(partial_json => ({ type: 'input_json_delta', partial_json })),
    ])
  return parts.flatMap(([start, deltas], index) => block(index, start, deltas))
}

/** The Messages API of Anthropic. */
export const anthropic: Simulator = {
  name: 'anthropic',
  rules: anthropicRules,
  read: (path, body) =>
    path.endsWith('/messages') ? { model: String(body.model), stream: body.stream === true } : null,
  demand: body => ({
    tools: (body.tools ?? []).map((tool: any) => ({ name: tool.name, schema: tool.input_schema })),
    forced: body.tool_choice?.type === 'any' || (body.tool_choice?.type === 'tool' && body.tool_choice.name),
    schema: (body.output_config?.format ?? body.output_format)?.schema,
  }),
  error(failure) {
    const id = requestId()
    const { status, retry_after } = failure
    return {
      status,
      headers: { 'request-id': id, ...(retry_after !== undefined && { 'retry-after': String(retry_after) }) },
      body: { ...errorBody(failure), request_id: id },
    }
  },
  whole: (answer, { model }) => message(answer, model),
  frames: (answer, { model }) => [
    named({
      type: 'message_start',
      message: {
        ...message(answer, model),
        content: [],
        stop_reason: null,
        usage: { ...usage(answer), output_tokens: 1 },
      },
    }),
    named({ type: 'ping' }),
    ...contentFrames(answer),
    named({
      type: 'message_delta',
      delta: { stop_reason: stopReason(answer), stop_sequence: null, ...stopDetails(answer) },
      usage: { ...outputOf(answer.usage), ...searchesOf(answer) },
    }),
    named({ type: 'message_stop' }),
  ],
  errorFrame: failure => ({ event: 'error', data: errorBody(failure) }),
  callId: n => `toolu_${String(n).padStart(24, '0')}`,
  cache: call => {
    const { tools = [], system = [], messages } = call.body
    const parts = [tools, typeof system === 'string' ? [{ text: system }] : system]
    const contents = messages.flatMap(({ content }: any) => (typeof content === 'string' ? [{ content }] : content))
    return cacheUse(
      call,
      [...parts.flat(), ...contents].map(content => ({ content, breakpoint: 'cache_control' in content })),
    )
  },
  issue: (answer, { model }) => [
    ...(answer.reasoning === null ? [] : answer.calls.map(({ id }): [string, unknown] => [id, thinking(answer)])),
    ...(answer.finish === 'pause_turn' ? [[PAUSED, message(answer, model).content] as [string, unknown]] : []),
  ],
  listing: {
    data: [
      { type: 'model', id: 'claude-sonnet-4-6', display_name: 'Claude Sonnet 4.6', created_at: '2026-02-17T00:00:00Z' },
    ],
    has_more: false,
    first_id: 'claude-sonnet-4-6',
    last_id: 'claude-sonnet-4-6',
  },
}
