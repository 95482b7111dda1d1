import { functionSchemaRules, strictAnswerRule } from './function-schemas.ts'
import { dataUrl } from './image-size.ts'
import { openaiImageRule } from './openai-images.ts'
import { type Breach, type Call, first, type Rule } from './rules.ts'

/** Models of OpenAI that reason; deployments and gateways put a name before it. */
const reasons = (model: string): boolean => /(^|[-/])(gpt-[56]|o[134])(-|\.|$)/.test(model)

const calls = (message: any): any[] => message?.tool_calls ?? []
const parts = (message: any): any[] => (Array.isArray(message.content) ? message.content : [])
/** Images of a request in the chat format. */
export const chatImages = ({ body }: Call): { type: string; data: string }[] =>
  (body.messages as any[]).flatMap(message =>
    parts(message).flatMap(part => (part.type === 'image_url' ? (dataUrl(part.image_url?.url) ?? []) : [])),
  )

const isAssistant = ({ role }: any): boolean => role === 'assistant'

/** Returns the text of a message. */
export const textOf = (message: any): string =>
  typeof message.content === 'string'
    ? message.content
    : parts(message)
        .map(({ text = '' }) => text)
        .join('')

export const functionsOf = ({ body }: Pick<Call, 'body'>) =>
  ((body.tools ?? []) as any[]).flatMap((tool, i) =>
    tool.type === 'function'
      ? [{ i, name: tool.function.name as string, schema: tool.function.parameters, strict: tool.function.strict }]
      : [],
  )

/** Yields the calls without results directly after their message. */
function* unanswered({ body: { messages } }: Call): Generator<Breach & { ids: string; i: number }> {
  for (const [i, message] of messages.entries()) {
    if (calls(message).length === 0) continue
    const answered = new Set<string>()
    for (let next = i + 1; messages[next]?.role === 'tool'; next++) answered.add(messages[next].tool_call_id)
    const missing = calls(message).flatMap(({ id }) => (answered.has(id) ? [] : [id]))
    if (missing.length > 0) yield { i, ids: missing.join(', ') }
  }
}

/** Yields the results without a call before them. */
function* uncalled({ body: { messages } }: Call): Generator<Breach> {
  for (const [i, message] of messages.entries()) {
    if (message.role !== 'tool') continue
    let before = i - 1
    while (messages[before]?.role === 'tool') before--
    if (!calls(messages[before]).some(({ id }) => id === message.tool_call_id)) yield { i, id: message.tool_call_id }
  }
}

/** Calls and their results; `more` replaces the message where a vendor has another one. */
export const pairingRules = (more: { missing?: string } = {}): Rule[] => [
  {
    name: 'result missing',
    source: 'S',
    date: '2026-07',
    message:
      more.missing ??
      "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {ids}",
    error: { param: 'messages' },
    breach: first(unanswered),
  },
  {
    name: 'result unexpected',
    source: 'S',
    date: '2025-03',
    message:
      "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    error: { param: 'messages.[{i}].role' },
    breach: first(uncalled),
  },
]

const tooLong = { code: 'string_above_max_length' }
const unsupported = (name: string, fields: readonly string[]): Rule => ({
  name,
  source: 'S',
  date: '2026-07',
  message: "Unsupported parameter: '{field}' is not supported with this model.",
  error: { code: 'unsupported_parameter', param: '{field}' },
  breach: first(function* ({ model, body }) {
    for (const field of fields) if (reasons(model) && body[field] !== undefined) yield { field }
  }),
})

export const openaiRules: readonly Rule[] = [
  ...pairingRules(),
  {
    name: 'max_tokens',
    source: 'S',
    date: '2026-07',
    message:
      "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    error: { code: 'unsupported_parameter', param: 'max_tokens' },
    breach: ({ model, body }) => (reasons(model) && body.max_tokens !== undefined ? {} : null),
  },
  {
    name: 'temperature',
    source: 'S',
    date: '2026-04',
    message:
      "Unsupported value: 'temperature' does not support {value} with this model. Only the default (1) value is supported.",
    error: { code: 'unsupported_value', param: 'temperature' },
    breach: ({ model, body }) => (reasons(model) && (body.temperature ?? 1) !== 1 ? { value: body.temperature } : null),
  },
  unsupported('sampling', ['top_p', 'presence_penalty', 'frequency_penalty', 'logit_bias', 'logprobs', 'stop']),
  {
    name: 'call id',
    source: 'S',
    date: '2026-01',
    message:
      "Invalid 'messages[{i}].tool_calls[{j}].id': string too long. Expected a string with maximum length 40, but got a string with length {n} instead.",
    error: { ...tooLong, param: 'messages[{i}].tool_calls[{j}].id' },
    breach: first(function* ({ body }) {
      for (const [i, message] of body.messages.entries())
        for (const [j, { id }] of calls(message).entries()) if (id.length > 40) yield { i, j, n: id.length }
    }),
  },
  {
    name: 'tool name',
    source: 'S',
    date: '2026-11',
    message:
      "Invalid 'tools[{i}].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
    error: { code: 'invalid_value', param: 'tools[{i}].function.name' },
    breach: first(function* (call) {
      for (const { i, name } of functionsOf(call)) if (!/^[a-zA-Z0-9_-]+$/.test(name)) yield { i }
    }),
  },
  {
    name: 'long tool name',
    source: 'S',
    date: '2026-11',
    message:
      "Invalid 'tools[{i}].function.name': string too long. Expected a string with maximum length 64, but got a string with length {n} instead.",
    error: { ...tooLong, param: 'tools[{i}].function.name' },
    breach: first(function* (call) {
      for (const { i, name } of functionsOf(call)) if (name.length > 64) yield { i, n: name.length }
    }),
  },
  {
    name: 'number of tools',
    source: '?',
    date: '2026-11',
    message:
      "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length {n} instead.",
    error: { code: 'array_above_max_length', param: 'tools' },
    breach: ({ body }) => (body.tools?.length > 128 ? { n: body.tools.length } : null),
  },
  ...functionSchemaRules(functionsOf, 'tools[{i}].function.parameters'),
  strictAnswerRule(body => body.response_format?.json_schema, 'response_format'),
  openaiImageRule(chatImages),
  {
    name: 'image in a result',
    source: 'S',
    date: '2026-11',
    message:
      "Invalid 'messages[{i}]'. Image URLs are only allowed for messages with role 'user', but this message with role '{role}' contains an image URL.",
    error: { code: 'invalid_value', param: 'messages[{i}]' },
    breach: first(function* ({ body }) {
      for (const [i, message] of body.messages.entries())
        if (message.role !== 'user' && parts(message).some(({ type }) => type !== 'text'))
          yield { i, role: message.role }
    }),
  },
  {
    name: 'empty assistant message',
    source: '?',
    date: '2026-11',
    message: "Invalid value for 'content': expected a string, got null.",
    error: { param: 'messages.[{i}].content' },
    breach: first(function* ({ body }) {
      for (const [i, message] of body.messages.entries())
        if (isAssistant(message) && message.content == null && calls(message).length === 0) yield { i }
    }),
  },
]

/** Yields the index of a user or assistant message that follows one with the same role, results left out. */
export function* repeatedRoles({ body }: Call): Generator<Breach> {
  let before = ''
  for (const [i, message] of body.messages.entries()) {
    if (message.role === 'system' || message.role === 'tool' || calls(message).length > 0) continue
    if (message.role === before || (before === '' && message.role === 'assistant')) yield { i, role: message.role }
    before = message.role
  }
}

/** Yields the calls of the assistant whose reasoning is absent, for models that demand it. */
export function* withoutReasoning({ body }: Call, isAbsent: (value: unknown) => boolean): Generator<Breach> {
  for (const [i, message] of body.messages.entries())
    if (calls(message).length > 0 && isAbsent(message.reasoning_content)) yield { i }
}

export { calls, isAssistant }
