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
import { type Answer, type Noise, pieces } from './plan.ts'
import type { Call, Rule } from './rules.ts'
import { type Failure, requestId, type Simulator } from './simulator.ts'

/** Differences between servers of the chat format. */
type Dialect = {
  rules: readonly Rule[]
  /** The body of an error; the fields of OpenAI without it. */
  error?(failure: Failure): unknown
  /** Field of the reasoning in answers; null if it is not shown. */
  reasoning?: 'reasoning_content' | 'reasoning' | null
  callId?(n: number): string
  noise?: readonly Noise[]
  /** Whether a stream has whole calls in place of pieces of their arguments. */
  wholeCalls?: boolean
  /** Place of the usage in a stream: a frame after the end on request (default), the last frame, or a field of Groq. */
  usage?: 'last' | 'x_groq'
}

const callIdOfOpenai = (n: number) => `call_${String(n).padStart(24, '0')}`
const shortId = (n: number) => String(n).padStart(9, 'a0').slice(-9)

const dialects = {
  openai: { rules: openaiRules, reasoning: null },
  mistral: {
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
  deepseek: { rules: deepseekRules },
  kimi: {
    rules: kimiRules,
    error: ({ message, type }) => ({ error: { message, type: type ?? 'invalid_request_error' } }),
    callId: n => `functions.tool:${n}`,
  },
  openrouter: {
    rules: openrouterRules,
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
    rules: litellmRules,
    error: ({ status, message }) => ({ error: { message, type: null, param: null, code: String(status) } }),
    reasoning: null,
  },
  vllm: {
    rules: vllmRules,
    error: ({ status, message }) => ({ error: { message, type: 'BadRequestError', param: null, code: status } }),
    callId: shortId,
  },
  llamacpp: {
    rules: llamacppRules,
    error: ({ status, message, type }) => ({ error: { code: status, message, type: type ?? 'invalid_request_error' } }),
    callId: n => `llama${String(n).padStart(27, '0')}`,
  },
  lmstudio: {
    rules: lmstudioRules,
    error: ({ message }) => ({ error: message }),
    callId: n => String(100_000_000 + n),
  },
  ollama: {
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
    reasoning: 'reasoning',
    callId: n => `fc_${String(n).padStart(9, '0')}`,
    usage: 'x_groq',
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

const usageOf = ({ usage }: Answer) =>
  usage && {
    prompt_tokens: usage.input + usage.cached,
    completion_tokens: usage.output,
    total_tokens: usage.input + usage.cached + usage.output,
    prompt_tokens_details: { cached_tokens: usage.cached },
    completion_tokens_details: { reasoning_tokens: usage.reasoning },
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
  const head = { id: `chatcmpl-${answer.id}`, object: 'chat.completion.chunk', created: 1_790_000_000, model }
  const choice = (delta: object, finish_reason: string | null = null) => ({
    ...head,
    choices: [{ index: 0, delta, logprobs: null, finish_reason }],
  })
  const usage = usageOf(answer)
  const end = choice({}, finishOf(answer))
  return [
    ...deltas(answer, dialect).map(delta => ({ data: choice(delta) })),
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

function whole(answer: Answer, { model }: Call, { reasoning: field = 'reasoning_content' }: Dialect) {
  const { text, reasoning, calls } = answer
  const message = {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(reasoning && field && { [field]: reasoning }),
    ...(calls.length > 0 && {
      tool_calls: calls.map(({ id, name, args }) => ({ id, type: 'function', function: { name, arguments: args } })),
    }),
  }
  const usage = usageOf(answer)
  return {
    id: `chatcmpl-${answer.id}`,
    object: 'chat.completion',
    created: 1_790_000_000,
    model,
    choices: [{ index: 0, message, logprobs: null, finish_reason: finishOf(answer) }],
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
    errorFrame: failure => ({ data: (dialect.error ?? openaiError)(failure) }),
    noise: dialect.noise,
    callId: dialect.callId ?? callIdOfOpenai,
    issue: ({ reasoning, calls }) => (reasoning === null ? [] : calls.map(({ id }) => [id, reasoning])),
    listing: { object: 'list', data: [{ id: 'model-1', object: 'model', created: 1_790_000_000, owned_by: name }] },
  }
}

/** Servers of the Chat Completions format, by dialect. */
export const chat = Object.fromEntries(
  (Object.keys(dialects) as DialectName[]).map(name => [name, simulator(name)]),
) as Record<DialectName, Simulator>
