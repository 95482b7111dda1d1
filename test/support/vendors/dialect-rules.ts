import { claudeModel } from './claude.ts'
import { strictAnswerRule } from './function-schemas.ts'
import { sentImage } from './image-size.ts'
import {
  calls,
  chatImages,
  functionsOf,
  isAssistant,
  openaiRules,
  pairingRules,
  repeatedRoles,
  textOf,
  withoutReasoning,
} from './openai-chat-rules.ts'
import { type Call, first, type Rule, wrapped } from './rules.ts'

const last = ({ body }: Call): any => body.messages.at(-1)

const order = { type: 'invalid_request_message_order', code: '3230' }

export const mistralRules: readonly Rule[] = [
  {
    name: 'ends with user',
    source: 'S',
    date: '2025-12',
    message: 'Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant',
    error: order,
    breach: call => (isAssistant(last(call) ?? {}) && last(call).prefix !== true ? {} : null),
  },
  {
    name: 'order of roles',
    source: 'S',
    date: '2026-06',
    message: "Unexpected role '{role}' after role '{before}'",
    error: order,
    breach: first(function* ({ body: { messages } }) {
      for (const [i, { role }] of messages.entries()) {
        const before = messages[i - 1]
        if (!before) continue
        const isResult = role === 'tool' && before.role !== 'tool' && calls(before).length === 0
        const isEarly = role === 'user' && before.role === 'tool'
        if (isResult || isEarly || (role === 'system' && before.role !== 'system')) yield { role, before: before.role }
      }
    }),
  },
  {
    name: 'result missing',
    source: 'S',
    date: '2025-09',
    message: 'Not the same number of function calls and responses',
    error: order,
    breach: pairingRules()[0]!.breach,
  },
  {
    name: 'call id',
    source: 'S',
    date: '2026-06',
    message: 'Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.',
    error: { type: 'invalid_function_call', code: '3280' },
    breach: first(function* ({ body }) {
      for (const message of body.messages)
        for (const id of [...calls(message).map(call => call.id), message.tool_call_id])
          if (id !== undefined && !/^[a-zA-Z0-9]{9}$/.test(id)) yield { id }
    }),
  },
  {
    name: 'empty assistant message',
    source: '?',
    date: '2026-11',
    message: 'Assistant message must have either content or tool_calls, but not none.',
    error: { type: 'invalid_request_assistant_message', code: '3240' },
    breach: first(function* ({ body }) {
      for (const message of body.messages)
        if (isAssistant(message) && !textOf(message) && calls(message).length === 0) yield {}
    }),
  },
  {
    name: 'unknown field',
    source: '?',
    date: '2026-01',
    message: 'Extra inputs are not permitted: {field}',
    error: { status: 422 },
    breach: first(function* ({ body }) {
      for (const field of ['stream_options', 'seed', 'user', 'logit_bias']) if (field in body) yield { field }
    }),
  },
]

/** Whether a model of DeepSeek or Kimi thinks in a call. */
const thinks = ({ model, body }: Call): boolean =>
  body.thinking?.type !== 'disabled' &&
  (body.thinking?.type === 'enabled' || /reasoner|thinking|k2\.[5-9]|k3/.test(model))

export const deepseekRules: readonly Rule[] = [
  ...pairingRules({
    missing:
      "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. (insufficient tool messages following tool_calls message)",
  }),
  {
    name: 'reasoning of calls',
    source: 'S',
    date: '2026-05',
    message: 'The `reasoning_content` in the thinking mode must be passed back to the API.',
    breach: first(function* (call) {
      if (thinks(call)) yield* withoutReasoning(call, value => typeof value !== 'string')
    }),
  },
  {
    name: 'reasoning of texts',
    source: '?',
    date: '2026-05',
    message: 'The `reasoning_content` in the thinking mode must be passed back to the API.',
    breach: first(function* (call) {
      if (!thinks(call)) return
      for (const message of call.body.messages)
        if (isAssistant(message) && typeof message.reasoning_content !== 'string') yield {}
    }),
  },
  {
    name: 'reasoning unchanged',
    source: '?',
    date: '2026-05',
    message: 'The `reasoning_content` in the thinking mode must be passed back to the API.',
    breach: first(function* ({ body, issued }) {
      for (const message of body.messages)
        for (const { id } of calls(message).slice(0, 1))
          if (issued.has(id) && typeof message.reasoning_content === 'string')
            if (issued.get(id) !== message.reasoning_content) yield {}
    }),
  },
  {
    name: 'answer schema',
    source: 'S',
    date: '2026-08',
    message: 'This response_format type is unavailable now',
    error: { code: 'invalid_request_error' },
    breach: ({ body }) => (body.response_format?.type === 'json_schema' ? {} : null),
  },
]

export const kimiRules: readonly Rule[] = [
  ...pairingRules(),
  {
    name: 'temperature',
    source: 'S',
    date: '2026-08',
    message: 'invalid temperature: only 1 is allowed for this model',
    breach: ({ model, body }) => (/k2|k3/.test(model) && (body.temperature ?? 1) !== 1 ? {} : null),
  },
  {
    name: 'reasoning of calls',
    source: 'S',
    date: '2026-05',
    message: 'thinking is enabled but reasoning_content is missing in assistant tool call message at index {i}',
    breach: first(function* (call) {
      if (thinks(call)) yield* withoutReasoning(call, value => typeof value !== 'string')
    }),
  },
  {
    name: 'empty reasoning of calls',
    source: 'S',
    date: '2026-05',
    message: 'thinking is enabled but reasoning_content is missing in assistant tool call message at index {i}',
    breach: first(function* (call) {
      if (thinks(call)) yield* withoutReasoning(call, value => value === '')
    }),
  },
  {
    name: 'empty assistant message',
    source: 'S',
    date: '2026-08',
    message: "Invalid request: the message at position {i} with role 'assistant' must not be empty",
    breach: first(function* ({ body }) {
      for (const [i, message] of body.messages.entries())
        if (isAssistant(message) && !textOf(message) && calls(message).length === 0) yield { i }
    }),
  },
]

/** Rules of Claude that a gateway of the chat format passes on. */
export const openrouterRules: readonly Rule[] = [
  ...pairingRules(),
  {
    name: 'ends with user',
    source: 'S',
    date: '2026-07',
    message: 'This model does not support assistant message prefill. The conversation must end with a user message.',
    breach: call => (claudeModel(call.model)?.prefill === false && isAssistant(last(call) ?? {}) ? {} : null),
  },
  {
    name: 'blank text',
    source: 'S',
    date: '2026-07',
    message: 'messages: text content blocks must contain non-whitespace text',
    breach: first(function* ({ model, body }) {
      if (!claudeModel(model)) return
      for (const message of body.messages) {
        const text = textOf(message)
        if (text !== '' && text.trim() === '') yield {}
      }
    }),
  },
]

export const litellmRules: readonly Rule[] = wrapped(openaiRules, 'litellm.BadRequestError: OpenAIException - ')

export const groqRules: readonly Rule[] = [
  {
    name: 'image pixels',
    source: '1',
    date: '2026-11',
    message: 'image has too many pixels: at most 33177600 pixels are supported per image',
    breach: first(function* (call) {
      for (const { data } of chatImages(call)) if (sentImage(data).pixels > 33_177_600) yield {}
    }),
  },
  {
    name: 'bytes of images',
    source: '1',
    date: '2026-11',
    message: 'Request Entity Too Large',
    error: { status: 413, code: 'request_too_large' },
    breach: call => (chatImages(call).reduce((sum, { data }) => sum + data.length, 0) > 4_000_000 ? {} : null),
  },
  ...pairingRules(),
  {
    name: 'unknown field of a message',
    source: 'S',
    date: '2026-05',
    message:
      "'messages.{i}' : for 'role:assistant' the following must be satisfied[('messages.{i}' : property '{field}' is unsupported)]",
    breach: first(function* ({ body }) {
      for (const [i, message] of body.messages.entries())
        for (const field of ['reasoning_content', 'reasoning_details', 'refusal'])
          if (field in message) yield { i, field }
    }),
  },
  {
    name: 'tool name',
    source: '?',
    date: '2026-11',
    message: "'tools.{i}.function.name' : value does not match the pattern ^[a-zA-Z0-9_-]{1,64}$",
    breach: first(function* (call) {
      for (const { i, name } of functionsOf(call)) if (!/^[a-zA-Z0-9_-]{1,64}$/.test(name)) yield { i }
    }),
  },
  strictAnswerRule(body => body.response_format?.json_schema, 'response_format', {
    date: '2026-11',
    message: "invalid JSON schema for response_format: '{name}': {context}: {problem}",
  }),
]

/** Templates of models of Mistral, which the servers of open models run. */
const isMistral = (model: string): boolean => /mistral|devstral/i.test(model)
const alternate = (error: Rule['error']): Rule => ({
  name: 'order of roles',
  source: 'S',
  date: '2026-02',
  message:
    'After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.',
  error,
  breach: first(function* (call) {
    if (isMistral(call.model)) yield* repeatedRoles(call)
  }),
})

export const vllmRules: readonly Rule[] = [
  alternate({}),
  {
    name: 'call id',
    source: '1',
    date: '2026-06',
    message: 'Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.',
    breach: call => (isMistral(call.model) ? mistralRules[3]!.breach(call) : null),
  },
]

const twoAnswers = (date: string, source: Rule['source']): Rule => ({
  name: 'two answers at the end',
  source,
  date,
  message: 'Cannot have 2 or more assistant messages at the end of the list.',
  breach: ({ body }) => (body.messages.length > 1 && body.messages.slice(-2).every(isAssistant) ? {} : null),
})

export const llamacppRules: readonly Rule[] = [
  twoAnswers('2026-08', '1'),
  {
    name: 'ends with user',
    source: 'S',
    date: '2026-05',
    message: 'Assistant response prefill is incompatible with enable_thinking.',
    breach: call =>
      isAssistant(last(call) ?? {}) && call.body.chat_template_kwargs?.enable_thinking !== false ? {} : null,
  },
  alternate({ status: 500, type: 'server_error' }),
]

export const lmstudioRules: readonly Rule[] = [
  {
    name: 'image pixels',
    source: '1',
    date: '2026-06',
    message: 'The image has more than 26214400 pixels.',
    breach: first(function* (call) {
      for (const { data } of chatImages(call)) if (sentImage(data).pixels > 26_214_400) yield {}
    }),
  },
  {
    name: 'answer format',
    source: 'S',
    date: '2026-03',
    message: "'response_format.type' must be 'json_schema' or 'text'",
    breach: ({ body }) => (body.response_format?.type === 'json_object' ? {} : null),
  },
  {
    name: 'forced tool',
    source: 'S',
    date: '2026-03',
    message: "Invalid tool_choice type: 'object'. Supported string values: none, auto, required",
    breach: ({ body }) => (typeof body.tool_choice === 'object' && body.tool_choice !== null ? {} : null),
  },
]

export const ollamaRules: readonly Rule[] = [twoAnswers('2026-08', '1')]
