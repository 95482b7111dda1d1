import type { Frame } from './frames.ts'
import { type Answer, logprobsOf, pieces } from './plan.ts'
import { functionsOf, type IssuedItem, responsesRules, xaiRules } from './responses-rules.ts'
import type { Call, Rule } from './rules.ts'
import { seal } from './signatures.ts'
import { type Failure, requestId, type Simulator } from './simulator.ts'

type Item = { type: string; id: string; [key: string]: unknown }

const isXai = ({ vendor }: Call): boolean => vendor === 'xai'

/** The searches in the usage of xAI, which counts those that succeeded. */
const toolUsage = (searches: number) => ({
  num_sources_used: 0,
  num_server_side_tools_used: searches,
  server_side_tool_usage_details: { web_search_calls: searches, x_search_calls: 0, code_interpreter_calls: 0 },
})

/** The searches of an answer, and the page that the last one opens, which is not billed. */
const searchItems = (id: string, searches: number): Item[] =>
  searches === 0
    ? []
    : [
        ...Array.from({ length: searches }, (_, n) => ({ type: 'search', query: `query ${n}` })),
        { type: 'open_page', url: 'https://example.com/' },
      ].map((action, n) => ({ type: 'web_search_call', id: `ws_${id}${n}`, status: 'completed', action }))

/** xAI (2026-11, S) numbers its citations and marks them in the text; OpenAI has the title of the page. */
const citationsOf = (text: string, searches: Answer['searches'], call: Call): object[] =>
  searches.flatMap(({ query, found, cited }, index) =>
    cited === undefined
      ? []
      : [
          isXai(call)
            ? {
                type: 'url_citation',
                url: found,
                title: String(index + 1),
                start_index: text.length,
                end_index: text.length,
              }
            : { type: 'url_citation', url: found, title: query, start_index: 0, end_index: text.length },
        ],
  )

/** Probabilities of the tokens of a text, if the request requires them. */
const probabilities = (chunks: readonly string[], { body }: Call) =>
  (body.include ?? []).includes('message.output_text.logprobs') ? logprobsOf(chunks, body.top_logprobs ?? 0) : []

/** The items of an answer: reasoning, searches, text, calls. */
function itemsOf({ id, reasoning, commentary, text, chunks, calls, searches, billed }: Answer, call: Call): Item[] {
  const { body } = call
  const encrypted = (body.include ?? []).includes('reasoning.encrypted_content')
  const thought: Item | null =
    reasoning === null
      ? null
      : {
          type: 'reasoning',
          id: `rs_${id}`,
          summary: [{ type: 'summary_text', text: reasoning }],
          ...(encrypted && { encrypted_content: seal(reasoning) }),
          status: 'completed',
        }
  const message = (item: string, text: string, phase: string): Item => ({
    type: 'message',
    id: item,
    status: 'completed',
    role: 'assistant',
    ...(commentary !== null && { phase }),
    content: [
      {
        type: 'output_text',
        text,
        annotations: citationsOf(text, searches, call),
        logprobs: phase === 'commentary' ? [] : probabilities(chunks, call),
      },
    ],
  })
  return [
    ...(thought ? [thought] : []),
    ...(isXai(call) ? [] : searchItems(id, billed.searches ?? 0)),
    ...searches.map(({ query }, index) => ({
      type: 'web_search_call',
      id: `ws_${id}${index}`,
      status: 'completed',
      action: { type: 'search', query },
    })),
    ...(commentary === null ? [] : [message(`msg_${id}c`, commentary, 'commentary')]),
    ...(text === '' && calls.length > 0 ? [] : [message(`msg_${id}`, text, 'final_answer')]),
    ...calls.map(
      ({ id: call_id, name, args }, index): Item => ({
        type: 'function_call',
        id: `fc_${id}${index}`,
        call_id,
        name,
        arguments: args,
        status: 'completed',
      }),
    ),
  ]
}

/** Reasons for an answer that is not complete. */
const INCOMPLETE = new Set(['max_output_tokens', 'content_filter'])

function response(answer: Answer, call: Call) {
  const { id, finish, usage, billed, searches } = answer
  const incomplete = finish !== null && INCOMPLETE.has(finish)
  return {
    id: `resp_${id}`,
    object: 'response',
    created_at: 1_790_000_000,
    status: incomplete ? 'incomplete' : (finish ?? 'completed'),
    model: billed.model ?? call.model,
    ...(billed.tier && { service_tier: billed.tier }),
    output: itemsOf(answer, call),
    error: null,
    incomplete_details: incomplete ? { reason: finish } : null,
    instructions: null,
    metadata: {},
    parallel_tool_calls: true,
    store: call.body.store ?? true,
    tool_choice: call.body.tool_choice ?? 'auto',
    tools: [],
    usage: usage && {
      input_tokens: usage.input + usage.cached + usage.written,
      input_tokens_details: {
        cached_tokens: usage.cached,
        ...(usage.written > 0 && writes(usage.written, billed.written_12h)),
      },
      output_tokens: usage.output,
      output_tokens_details: { reasoning_tokens: usage.reasoning },
      total_tokens: usage.input + usage.cached + usage.written + usage.output,
      ...(isXai(call) && (billed.searches ?? searches.length) > 0 && toolUsage(billed.searches ?? searches.length)),
    },
  }
}

const writes = (written: number, long = 0) => ({
  cache_write_tokens: written,
  cache_write_tokens_details: { ttl_30m_tokens: written - long, ttl_12h_tokens: long },
})

type Event = { type: string; [key: string]: unknown }

/** Events within an item. */
function eventsOf(item: Item, output_index: number, chunks: readonly string[], call: Call): Event[] {
  const at = { item_id: item.id, output_index }
  if (item.type === 'reasoning') {
    const part = (item.summary as { text: string }[])[0]!
    const summary = { ...at, summary_index: 0 }
    return [
      { type: 'response.reasoning_summary_part.added', ...summary, part: { ...part, text: '' } },
      { type: 'response.reasoning_summary_text.delta', ...summary, delta: part.text },
      { type: 'response.reasoning_summary_text.done', ...summary, text: part.text },
      { type: 'response.reasoning_summary_part.done', ...summary, part },
    ]
  }
  if (item.type === 'web_search_call')
    return ['in_progress', 'searching', 'completed'].map(state => ({
      type: `response.web_search_call.${state}`,
      ...at,
    }))
  if (item.type === 'function_call') {
    const args = String(item.arguments)
    return [
      ...pieces(args).map(delta => ({ type: 'response.function_call_arguments.delta', ...at, delta })),
      { type: 'response.function_call_arguments.done', ...at, name: item.name, arguments: args },
    ]
  }
  if (item.type === 'web_search_call') return []
  const part = (item.content as { text: string; annotations: object[]; logprobs: object[] }[])[0]!
  const content = { ...at, content_index: 0 }
  return [
    { type: 'response.content_part.added', ...content, part: { ...part, text: '', annotations: [] } },
    ...chunks.map(delta => ({
      type: 'response.output_text.delta',
      ...content,
      delta,
      logprobs: probabilities([delta], call),
    })),
    ...part.annotations.map((annotation, annotation_index) => ({
      type: 'response.output_text.annotation.added',
      ...content,
      annotation_index,
      annotation,
    })),
    { type: 'response.output_text.done', ...content, text: part.text, logprobs: part.logprobs },
    { type: 'response.content_part.done', ...content, part },
  ]
}

/** An item before its content. */
const begun = (item: Item): Item => ({
  ...item,
  status: 'in_progress',
  ...(item.type === 'message' && { content: [] }),
  ...(item.type === 'reasoning' && { summary: [] }),
  ...(item.type === 'function_call' && { arguments: '' }),
})

function frames(answer: Answer, call: Call): Frame[] {
  const done = response(answer, call)
  const started = { ...done, status: 'in_progress', output: [], usage: null, incomplete_details: null }
  const events: Event[] = [
    { type: 'response.created', response: started },
    { type: 'response.in_progress', response: started },
    ...done.output.flatMap((item, output_index) => [
      { type: 'response.output_item.added', output_index, item: begun(item) },
      ...eventsOf(
        item,
        output_index,
        item.phase === 'commentary' ? [answer.commentary as string] : answer.chunks,
        call,
      ),
      { type: 'response.output_item.done', output_index, item },
    ]),
    { type: `response.${done.status}`, response: done },
  ]
  return events.map((event, sequence_number) => ({ event: event.type, data: { ...event, sequence_number } }))
}

function issue(answer: Answer, call: Call): [string, IssuedItem][] {
  const items = itemsOf(answer, call)
  const reasoning = items.find(({ type }) => type === 'reasoning')?.id
  const stored = call.body.store !== false
  return items.map(item => [
    item.id,
    {
      stored,
      ...(item.type === 'function_call' && { call_id: item.call_id as string, ...(reasoning && { reasoning }) }),
    },
  ])
}

const openaiError = ({ status, message, type, code, param }: Failure) => ({
  error: {
    message,
    type: type ?? (status >= 500 ? 'server_error' : status === 429 ? 'requests' : 'invalid_request_error'),
    param: param ?? null,
    code: code ?? (status === 429 ? 'rate_limit_exceeded' : null),
  },
})

const xaiError = ({ message, code }: Failure) => ({
  code: code ?? 'Client specified an invalid argument',
  error: message,
})

const simulator = (name: string, rules: readonly Rule[], errorBody: (failure: Failure) => unknown): Simulator => ({
  name,
  rules,
  read: (path, body) =>
    path.split('?')[0]!.endsWith('/responses') ? { model: String(body.model), stream: body.stream === true } : null,
  demand: body => ({
    tools: functionsOf({ body }),
    forced: body.tool_choice === 'required' || (body.tool_choice?.name ?? false),
    schema: body.text?.format?.schema,
  }),
  error(failure) {
    const { status, retry_after } = failure
    return {
      status,
      headers: {
        'x-request-id': requestId(),
        ...(retry_after !== undefined && { 'retry-after': String(retry_after) }),
      },
      body: errorBody(failure),
    }
  },
  whole: response,
  frames,
  errorFrame: ({ message, code }) => ({
    event: 'error',
    data: { type: 'error', sequence_number: 0, code: code ?? 'server_error', message, param: null },
  }),
  callId: n => `call_${String(n).padStart(24, '0')}`,
  issue,
  listing: { object: 'list', data: [{ id: 'model-1', object: 'model', created: 1_790_000_000, owned_by: name }] },
})

/** The Responses API of OpenAI and Azure. */
export const responses = simulator('openai responses', responsesRules, openaiError)

/** The Responses API of xAI. */
export const xai = simulator('xai', xaiRules, xaiError)
