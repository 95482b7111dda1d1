import {
  deepseekRules,
  groqRules,
  kimiRules,
  litellmRules,
  llamacppRules,
  lmstudioRules,
  mistralRules,
  ollamaRules,
  openrouterRules,
  vllmRules,
} from './dialect-rules.ts'
import type { Frame } from './frames.ts'
import { functionsOf, openaiRules } from './openai-chat-rules.ts'
import { type Answer, logprobsOf, type Noise, pieces, type Usage } from './plan.ts'
import type { Call, Rule } from './rules.ts'
import { type Failure, requestId, type Simulator } from './simulator.ts'

/** Differences between servers of the chat format. */
type Dialect = {
  rules: readonly Rule[]
  /** The body of an error; the fields of OpenAI without it. */
  error?(failure: Failure): unknown
  /** The frame of an error in a stream; the body of an error without it. */
  errorFrame?(failure: Failure): Frame
  /** Fields of a message with what the vendor's tools did. */
  executed?(answer: Answer, body: Call['body']): object
  /** Field of the reasoning in answers; null if it is not shown. */
  reasoning?: 'reasoning_content' | 'reasoning' | null
  callId?(n: number): string
  noise?: readonly Noise[]
  /** Whether a stream has whole calls in place of pieces of their arguments. */
  wholeCalls?: boolean
  /** What an entry of the listing has besides its ID; the name of the dialect as its owner by default. */
  listed?: object
  listingHeaders?: Record<string, string>
  /** Place of the usage in a stream: a frame after the end on request (default), the last frame, or a field of Groq. */
  usage?: 'last' | 'x_groq'
  /** Fields of the cache, where they are different from OpenAI. */
  ownCache?(usage: Usage): object
  /** The number of web searches in the usage. */
  searches?(n: number): object
  /** Service tier without a request for another one. */
  tier?: string
}

const callIdOfOpenai = (n: number) => `call_${String(n).padStart(24, '0')}`
const shortId = (n: number) => String(n).padStart(9, 'a0').slice(-9)

const dialects = {
  openai: { rules: openaiRules, reasoning: null, tier: 'default' },
  mistral: {
    listed: { owned_by: 'mistralai', capabilities: { completion_chat: true }, max_context_length: 131_072 },
    rules: mistralRules,
    error: ({ status, message, type, code }) => ({
      object: 'error',
      message,
      type: type ?? 'invalid_request_error',
      param: null,
      code: code ?? null,
      raw_status_code: status,
    }),
    reasoning: null,
    callId: shortId,
    usage: 'last',
  },
  deepseek: {
    rules: deepseekRules,
    ownCache: ({ input, cached }) => ({ prompt_cache_hit_tokens: cached, prompt_cache_miss_tokens: input }),
  },
  kimi: {
    listed: { owned_by: 'moonshot', permission: [] },
    rules: kimiRules,
    error: ({ message, type }) => ({ error: { message, type: type ?? 'invalid_request_error' } }),
    callId: n => `functions.tool:${n}`,
    ownCache: ({ cached }) => ({ cached_tokens: cached }),
  },
  openrouter: {
    listed: { canonical_slug: 'model-1', pricing: { prompt: '0' }, top_provider: { context_length: 8192 } },
    rules: openrouterRules,
    searches: n => ({ server_tool_use: { web_search_requests: n } }),
    error: ({ status, message }) => ({
      error: {
        message: 'Provider returned error',
        code: status,
        metadata: {
          raw: JSON.stringify({ type: 'error', error: { type: 'invalid_request_error', message } }),
          provider_name: 'Anthropic',
        },
      },
      user_id: 'user_1',
    }),
    reasoning: 'reasoning',
    noise: ['comments'],
    callId: n => `toolu_${String(n).padStart(24, '0')}`,
  },
  litellm: {
    listed: { owned_by: 'openai' },
    listingHeaders: { 'x-litellm-version': '1.80.0', 'x-litellm-call-id': 'c' },
    rules: litellmRules,
    error: ({ status, message }) => ({ error: { message, type: null, param: null, code: String(status) } }),
    reasoning: null,
  },
  vllm: {
    listed: { owned_by: 'vllm', root: 'model-1', parent: null, max_model_len: 8192, permission: [] },
    rules: vllmRules,
    error: ({ status, message }) => ({ error: { message, type: 'BadRequestError', param: null, code: status } }),
    callId: shortId,
  },
  llamacpp: {
    listed: { owned_by: 'llamacpp', meta: { n_ctx_train: 8192 } },
    listingHeaders: { server: 'llama.cpp' },
    rules: llamacppRules,
    error: ({ status, message, type }) => ({ error: { code: status, message, type: type ?? 'invalid_request_error' } }),
    callId: n => `llama${String(n).padStart(27, '0')}`,
  },
  lmstudio: {
    listed: { owned_by: 'organization_owner' },
    rules: lmstudioRules,
    error: ({ message }) => ({ error: message }),
    callId: n => String(100_000_000 + n),
  },
  ollama: {
    listed: { owned_by: 'library' },
    rules: ollamaRules,
    reasoning: 'reasoning',
    callId: n => `call_${String(n).padStart(8, '0')}`,
    wholeCalls: true,
  },
  groq: {
    rules: groqRules,
    error: ({ message, code, type }) => ({
      error: { message, type: type ?? 'invalid_request_error', ...(code && { code }) },
    }),
    // 2026-07, S: a stream that began ends with the refusal of the model's own call.
    errorFrame: ({ status, message, code, type }) => ({
      event: 'error',
      data: {
        error: {
          message,
          type: type ?? 'invalid_request_error',
          ...(code && { code, failed_generation: '<function=look{}</function>' }),
          status_code: status,
        },
      },
    }),
    // 2026-11, 1: types of the vendor's own client; compound models run tools without a request for them.
    executed: ({ searches }, { model, tools = [] }) =>
      searches.length > 0 && (/compound/.test(model) || tools.some(({ type }: any) => type === 'browser_search'))
        ? {
            executed_tools: searches.map(({ query, found, cited }, index) => ({
              index,
              type: 'browser_search',
              arguments: JSON.stringify({ query }),
              output: cited ?? '',
              search_results: { results: [{ title: query, url: found, content: cited, score: 0.9 }] },
            })),
          }
        : {},
    reasoning: 'reasoning',
    callId: n => `fc_${String(n).padStart(9, '0')}`,
    usage: 'x_groq',
    tier: 'on_demand',
  },
} satisfies Record<string, Dialect>

export type DialectName = keyof typeof dialects

const TYPES: Record<number, string> = { 429: 'requests', 500: 'server_error', 503: 'server_error' }

const openaiError = ({ status, message, type, code, param }: Failure) => ({
  error: {
    message,
    type: type ?? TYPES[status] ?? 'invalid_request_error',
    param: param ?? null,
    code: code ?? (status === 429 ? 'rate_limit_exceeded' : null),
  },
})

const finishOf = ({ finish, calls }: Answer): string => finish ?? (calls.length > 0 ? 'tool_calls' : 'stop')

const usageOf = ({ usage, billed }: Answer, { ownCache, searches }: Dialect) => {
  if (!usage) return null
  const { audio, image } = billed
  const prompt_tokens = usage.input + usage.cached + usage.written
  const cached = { cached_tokens: usage.cached }
  return {
    prompt_tokens,
    completion_tokens: usage.output - (billed.reasoning_apart ? usage.reasoning : 0),
    total_tokens: prompt_tokens + usage.output,
    ...(ownCache?.(usage) ?? {
      prompt_tokens_details: {
        ...cached,
        ...(usage.written > 0 && { cache_write_tokens: usage.written }),
        ...(audio && { audio_tokens: audio.input ?? 0 }),
        ...(image && { image_tokens: image.input ?? 0 }),
      },
    }),
    completion_tokens_details: {
      reasoning_tokens: usage.reasoning,
      ...(audio && { audio_tokens: audio.output ?? 0 }),
    },
    ...(billed.searches !== undefined && searches?.(billed.searches)),
  }
}

/** Deltas of a stream: the role, the reasoning, the text, the calls. */
function deltas(answer: Answer, { reasoning: field = 'reasoning_content', wholeCalls }: Dialect): object[] {
  const { reasoning, chunks, calls } = answer
  return [
    { role: 'assistant', content: '' },
    ...(reasoning && field ? [{ [field]: reasoning }] : []),
    ...chunks.map(content => ({ content })),
    ...calls.flatMap(({ id, name, args }, index) => {
      const opened = (text: string) => ({
        tool_calls: [{ index, id, type: 'function', function: { name, arguments: text } }],
      })
      if (wholeCalls) return [opened(args)]
      return [opened(''), ...pieces(args).map(piece => ({ tool_calls: [{ index, function: { arguments: piece } }] }))]
    }),
  ]
}

function frames(answer: Answer, { model, body }: Call, dialect: Dialect): Frame[] {
  const head = {
    id: `chatcmpl-${answer.id}`,
    object: 'chat.completion.chunk',
    created: 1_790_000_000,
    model: answer.billed.model ?? model,
    ...tierOf(answer, dialect),
  }
  const choice = (delta: { content?: string }, finish_reason: string | null = null) => ({
    ...head,
    ...(!dialect.usage && { usage: null }),
    choices: [{ index: 0, delta, logprobs: probabilities(delta.content ? [delta.content] : [], body), finish_reason }],
  })
  const executed = dialect.executed?.(answer, body)
  const usage = usageOf(answer, dialect)
  const end = choice({}, finishOf(answer))
  return [
    ...deltas(answer, dialect).map(delta => ({ data: choice(delta) })),
    ...(executed ? [{ data: choice(executed) }] : []),
    {
      data: {
        ...end,
        ...(usage && dialect.usage === 'last' && { usage }),
        ...(usage && dialect.usage === 'x_groq' && { x_groq: { id: head.id, usage } }),
      },
    },
    ...(usage && !dialect.usage && body.stream_options?.include_usage
      ? [{ data: { ...head, choices: [], usage } }]
      : []),
    { data: '[DONE]' },
  ]
}

/** Probabilities of tokens, if the request requires them. */
const probabilities = (chunks: readonly string[], { logprobs, top_logprobs }: Call['body']): object | null =>
  logprobs && chunks.length > 0 ? { content: logprobsOf(chunks, top_logprobs ?? 0), refusal: null } : null

const tierOf = ({ billed }: Answer, dialect: Dialect) => {
  const service_tier = billed.tier ?? dialect.tier
  return service_tier ? { service_tier } : {}
}

function whole(answer: Answer, { model, body }: Call, dialect: Dialect) {
  const { reasoning: field = 'reasoning_content' } = dialect
  const { text, reasoning, calls } = answer
  const message = {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(reasoning && field && { [field]: reasoning }),
    ...dialect.executed?.(answer, body),
    ...(calls.length > 0 && {
      tool_calls: calls.map(({ id, name, args }) => ({ id, type: 'function', function: { name, arguments: args } })),
    }),
  }
  const usage = usageOf(answer, dialect)
  return {
    id: `chatcmpl-${answer.id}`,
    object: 'chat.completion',
    created: 1_790_000_000,
    model: answer.billed.model ?? model,
    ...tierOf(answer, dialect),
    choices: [{ index: 0, message, logprobs: probabilities(answer.chunks, body), finish_reason: finishOf(answer) }],
    ...(usage && { usage }),
  }
}

function simulator(name: DialectName): Simulator {
  const dialect: Dialect = dialects[name]
  return {
    name,
    rules: dialect.rules,
    read: (path, body) =>
      path.split('?')[0]!.endsWith('/chat/completions')
        ? { model: String(body.model), stream: body.stream === true }
        : null,
    demand: body => ({
      tools: functionsOf({ body }),
      forced: body.tool_choice === 'required' || (body.tool_choice?.function?.name ?? false),
      schema: body.response_format?.json_schema?.schema,
    }),
    error(failure) {
      const { status, retry_after } = failure
      return {
        status,
        headers: {
          'x-request-id': requestId(),
          ...(retry_after !== undefined && { 'retry-after': String(retry_after) }),
        },
        body: (dialect.error ?? openaiError)(failure),
      }
    },
    whole: (answer, call) => whole(answer, call, dialect),
    frames: (answer, call) => frames(answer, call, dialect),
    errorFrame: dialect.errorFrame ?? (failure => ({ data: (dialect.error ?? openaiError)(failure) })),
    noise: dialect.noise,
    callId: dialect.callId ?? callIdOfOpenai,
    issue: ({ reasoning, calls }) => (reasoning === null ? [] : calls.map(({ id }) => [id, reasoning])),
    listing: {
      object: 'list',
      data: [{ id: 'model-1', object: 'model', created: 1_790_000_000, ...(dialect.listed ?? { owned_by: name }) }],
    },
    listingHeaders: dialect.listingHeaders,
  }
}

/** Servers of the Chat Completions format, by dialect. */
export const chat = Object.fromEntries(
  (Object.keys(dialects) as DialectName[]).map(name => [name, simulator(name)]),
) as Record<DialectName, Simulator>
