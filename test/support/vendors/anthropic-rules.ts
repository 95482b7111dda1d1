import { Ajv2020 } from 'ajv/dist/2020.js'
import { claudeModel } from './claude.ts'
import { sentImage } from './image-size.ts'
import { type Call, first, type Rule } from './rules.ts'
import { nodes, UNIONS } from './schemas.ts'
import { isSealed, sign } from './signatures.ts'

const TOP_FIELDS = new Set(
  `model messages system max_tokens metadata stop_sequences stream temperature top_k top_p tools tool_choice thinking
  service_tier container context_management mcp_servers output_config output_format inference_geo speed cache_control
  fallbacks`.split(/\s+/),
)
const MESSAGE_FIELDS = new Set(['role', 'content'])
const IMAGES = new Set(['image/jpeg', 'image/png', 'image/gif', 'image/webp'])
/** Images in a request above which a lower limit of their sides holds. */
const MANY_IMAGES = 20

type Block = Record<string, any>

/** Returns the blocks of a message. */
const blocks = ({ content }: { content: unknown }): Block[] =>
  typeof content === 'string' ? [{ type: 'text', text: content }] : Array.isArray(content) ? content : []

function* allBlocks(call: Call): Generator<{ block: Block; i: number; j: number; role: string }> {
  for (const [i, message] of call.body.messages.entries())
    for (const [j, block] of blocks(message).entries()) yield { block, i, j, role: message.role }
}

function* allImages(call: Call): Generator<{ source: any; path: string }> {
  for (const { block, i, j } of allBlocks(call)) {
    if (block.type === 'image') yield { source: block.source, path: `messages.${i}.content.${j}.image` }
    if (block.type !== 'tool_result') continue
    for (const [k, inner] of blocks(block as { content: unknown }).entries())
      if (inner.type === 'image')
        yield { source: inner.source, path: `messages.${i}.content.${j}.tool_result.content.${k}.image` }
  }
}

/** Tools that the caller defines, with their index among all. */
const customTools = (call: Call): [number, any][] =>
  [...(call.body.tools ?? []).entries()].filter(([, tool]) => tool.type === undefined || tool.type === 'custom')

const ids = (message: any, type: string, key: string): string[] =>
  message === undefined ? [] : blocks(message).flatMap(block => (block.type === type ? [String(block[key])] : []))

const isThinking = (block: Block | undefined): boolean => /^(redacted_)?thinking$/.test(block?.type ?? '')

/** Key of the content of the last answer that was paused. */
export const PAUSED = 'paused answer'

/** Whether a request ends with the answer that was paused, which the vendor continues. The package trims the last text. */
function endsPaused({ body, issued }: Call): boolean {
  const keys = (content: readonly Block[]) =>
    content.map(({ type, id, tool_use_id, text, thinking }) =>
      `${type} ${id ?? tool_use_id ?? text ?? thinking}`.trim(),
    )
  const paused = keys((issued.get(PAUSED) ?? []) as Block[])
  // The message may begin with earlier parts of the answer.
  const sent = keys(blocks(body.messages.at(-1))).slice(-paused.length)
  return paused.length > 0 && JSON.stringify(sent) === JSON.stringify(paused)
}

/** Messages of the assistant since the last message that a user wrote. */
function* currentTurn(call: Call): Generator<{ i: number; content: Block[] }> {
  const { messages } = call.body
  const started = messages.findLastIndex(
    (message: any) => message.role === 'user' && blocks(message).some(({ type }) => type !== 'tool_result'),
  )
  for (const [i, message] of messages.entries())
    if (i > started && message.role === 'assistant') yield { i, content: blocks(message) }
}

const draft = new Ajv2020({ strict: false, logger: false })
const isDraft2020 = (schema: unknown): boolean => {
  try {
    return draft.validateSchema({ ...(schema as object), $schema: undefined, $id: undefined }) === true
  } catch {
    return false
  }
}

/** Rules of the model that also hold where another cloud serves it. */
export const claudeRules: readonly Rule[] = [
  {
    name: 'temperature',
    source: 'S',
    date: '2026-06',
    message: '`temperature` is deprecated for this model.',
    breach: ({ model, body }) => (claudeModel(model)?.sampling === false && samplers(body).temperature ? {} : null),
  },
  {
    name: 'top_p',
    source: '1',
    date: '2026-05',
    message: '`top_p` is deprecated for this model.',
    breach: ({ model, body }) => (claudeModel(model)?.sampling === false && samplers(body).top_p ? {} : null),
  },
  {
    name: 'temperature and top_p',
    source: 'S',
    date: '2026-11',
    message: '`temperature` and `top_p` cannot both be specified for this model. Please use only one.',
    breach: ({ model, body }) =>
      claudeModel(model)?.bothSamplers === false && samplers(body).temperature && samplers(body).top_p ? {} : null,
  },
]

/** Which samplers a request sets, in the format of either cloud. */
const samplers = (body: any) => ({
  temperature: (body.temperature ?? body.inferenceConfig?.temperature) !== undefined,
  top_p: (body.top_p ?? body.inferenceConfig?.topP) !== undefined,
})

export const anthropicRules: readonly Rule[] = [
  {
    name: 'max_tokens',
    source: '?',
    date: '2026-11',
    message: 'max_tokens: Field required',
    breach: ({ body }) => (body.max_tokens === undefined ? {} : null),
  },
  {
    name: 'unknown field',
    source: '?',
    date: '2026-11',
    message: '{field}: Extra inputs are not permitted',
    breach: first(function* ({ body }) {
      for (const field of Object.keys(body)) if (!TOP_FIELDS.has(field)) yield { field }
      for (const [i, message] of body.messages.entries())
        for (const field of Object.keys(message))
          if (!MESSAGE_FIELDS.has(field)) yield { field: `messages.${i}.${field}` }
    }),
  },
  {
    name: 'no messages',
    source: '?',
    date: '2026-11',
    message: 'messages: at least one message is required',
    breach: ({ body }) => (body.messages.length === 0 ? {} : null),
  },
  {
    name: 'begins with user',
    source: 'S',
    date: '2026-11',
    message: 'messages: first message must use the "user" role',
    breach: ({ body }) => (body.messages[0]?.role === 'assistant' ? {} : null),
  },
  {
    name: 'ends with user',
    source: 'S',
    date: '2026-09',
    message: 'This model does not support assistant message prefill. The conversation must end with a user message.',
    breach: call =>
      claudeModel(call.model)?.prefill === false && call.body.messages.at(-1)?.role === 'assistant' && !endsPaused(call)
        ? {}
        : null,
  },
  {
    name: 'trailing space',
    source: '?',
    date: '2026-11',
    message: 'messages: final assistant content cannot end with trailing whitespace',
    breach({ body }) {
      const last = body.messages.at(-1)
      if (last?.role !== 'assistant') return null
      return /\s$/.test(blocks(last).at(-1)?.text ?? '') ? {} : null
    },
  },
  {
    name: 'empty text',
    source: 'S',
    date: '2026-05',
    message: 'messages: text content blocks must be non-empty',
    breach: first(function* (call) {
      for (const { block } of allBlocks(call)) if (block.type === 'text' && block.text === '') yield {}
    }),
  },
  {
    name: 'blank text',
    source: 'S',
    date: '2026-07',
    message: 'messages: text content blocks must contain non-whitespace text',
    breach: first(function* (call) {
      for (const { block } of allBlocks(call)) if (block.type === 'text' && block.text.trim() === '') yield {}
    }),
  },
  {
    name: 'empty message',
    source: '?',
    date: '2026-11',
    message: 'messages.{i}: all messages must have non-empty content except for the optional final assistant message',
    breach: first(function* ({ body }) {
      for (const [i, message] of body.messages.entries())
        if (blocks(message).length === 0 && !(message.role === 'assistant' && i === body.messages.length - 1))
          yield { i }
    }),
  },
  {
    name: 'result missing',
    source: 'S',
    date: '2026-01',
    message:
      'messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.',
    breach: first(function* ({ body }) {
      for (const [i, message] of body.messages.entries()) {
        const results = new Set(ids(body.messages[i + 1], 'tool_result', 'tool_use_id'))
        const missing = ids(message, 'tool_use', 'id').filter(id => !results.has(id))
        if (missing.length > 0) yield { i, ids: missing.join(', ') }
      }
    }),
  },
  {
    name: 'result unexpected',
    source: 'S',
    date: '2025-12',
    message:
      'messages.{i}.content.{j}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.',
    breach: first(function* (call) {
      for (const { block, i, j } of allBlocks(call))
        if (
          block.type === 'tool_result' &&
          !ids(call.body.messages[i - 1], 'tool_use', 'id').includes(block.tool_use_id)
        )
          yield { i, j, id: block.tool_use_id }
    }),
  },
  {
    name: 'call id',
    source: 'S',
    date: '2026-11',
    message: "messages.{i}.content.{j}.{type}.{key}: String should match pattern '^[a-zA-Z0-9_-]+$'",
    breach: first(function* (call) {
      for (const { block, i, j } of allBlocks(call)) {
        const key = block.type === 'tool_use' ? 'id' : block.type === 'tool_result' ? 'tool_use_id' : null
        if (key && !/^[a-zA-Z0-9_-]{1,64}$/.test(block[key])) yield { i, j, type: block.type, key }
      }
    }),
  },
  {
    name: 'call ids unique',
    source: 'S',
    date: '2026-03',
    message: 'messages.{i}.content.{j}: `tool_use` ids must be unique',
    breach: first(function* (call) {
      const seen = new Set<string>()
      for (const { block, i, j } of allBlocks(call)) {
        if (block.type !== 'tool_use') continue
        if (seen.has(block.id)) yield { i, j }
        seen.add(block.id)
      }
    }),
  },
  {
    name: 'tool name',
    source: 'S',
    date: '2026-11',
    message: "tools.{i}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'",
    breach: first(function* (call) {
      for (const [i, tool] of customTools(call)) if (!/^[a-zA-Z0-9_-]{1,64}$/.test(tool.name)) yield { i }
    }),
  },
  {
    name: 'hosted tool name',
    source: '1',
    date: '2026-11',
    message: "tools.{i}.{type}.name: Input should be '{expected}'",
    breach: first(function* ({ body }) {
      for (const [i, { type = '', name }] of (body.tools ?? []).entries()) {
        const expected = /^(web_search|code_execution)_\d{8}$/.exec(type)?.[1]
        if (expected && name !== expected) yield { i, type, expected }
      }
    }),
  },
  {
    name: 'hosted tool of a beta',
    source: '1',
    date: '2026-11',
    message: "tools.{i}: Input tag '{type}' found using 'type' does not match any of the expected tags",
    breach: first(function* ({ body, headers }) {
      const betas = String(headers['anthropic-beta'] ?? '')
      for (const [i, { type = '' }] of (body.tools ?? []).entries())
        if (/^code_execution_/.test(type) && !betas.includes('code-execution')) yield { i, type }
    }),
  },
  {
    name: 'domains of a search',
    source: 'S',
    date: '2026-11',
    message: 'tools.{i}.web_search_20250305: Only one of allowed_domains or blocked_domains can be specified',
    breach: first(function* ({ body }) {
      for (const [i, tool] of (body.tools ?? []).entries())
        if (tool.allowed_domains?.length && tool.blocked_domains?.length) yield { i }
    }),
  },
  {
    name: 'tool names unique',
    source: '?',
    date: '2026-11',
    message: 'tools: Tool names must be unique.',
    breach: call => {
      const names = customTools(call).map(([, { name }]) => name)
      return new Set(names).size < names.length ? {} : null
    },
  },
  {
    name: 'schema type',
    source: '?',
    date: '2026-11',
    message: "tools.{i}.custom.input_schema.type: Input should be 'object'",
    breach: first(function* (call) {
      for (const [i, tool] of customTools(call)) if (tool.input_schema?.type !== 'object') yield { i }
    }),
  },
  {
    name: 'schema union at the top',
    source: 'S',
    date: '2026-09',
    message: 'tools.{i}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level',
    breach: first(function* (call) {
      for (const [i, tool] of customTools(call)) if (UNIONS.some(key => key in tool.input_schema)) yield { i }
    }),
  },
  {
    name: 'schema keys',
    source: 'S',
    date: '2026-11',
    message: "tools.{i}.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
    breach: first(function* (call) {
      for (const [i, tool] of customTools(call))
        for (const { schema } of nodes(tool.input_schema))
          if (Object.keys(schema.properties ?? {}).some(key => !/^[a-zA-Z0-9_.-]{1,64}$/.test(key))) yield { i }
    }),
  },
  {
    name: 'schema draft',
    source: 'S',
    date: '2026-11',
    message:
      'tools.{i}.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 (https://json-schema.org/draft/2020-12). Learn more about tool use at https://docs.claude.com/en/docs/tool-use.',
    breach: first(function* (call) {
      for (const [i, tool] of customTools(call)) if (!isDraft2020(tool.input_schema)) yield { i }
    }),
  },
  ...claudeRules,
  {
    name: 'thinking budget',
    source: 'S',
    date: '2026-08',
    message: 'thinking.enabled.budget_tokens: Input should be greater than or equal to 1024',
    breach: ({ body }) => (body.thinking?.type === 'enabled' && !(body.thinking.budget_tokens >= 1024) ? {} : null),
  },
  {
    name: 'thinking below max_tokens',
    source: 'S',
    date: '2026-02',
    message: '`max_tokens` must be greater than `thinking.budget_tokens`.',
    breach: ({ body }) =>
      body.thinking?.type === 'enabled' && body.max_tokens <= body.thinking.budget_tokens ? {} : null,
  },
  {
    name: 'thinking adaptive only',
    source: '1',
    date: '2026-08',
    message: '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".',
    breach: ({ model, body }) =>
      body.thinking?.type === 'enabled' && claudeModel(model)?.manual === false ? {} : null,
  },
  {
    name: 'thinking and forced tool',
    source: 'S',
    date: '2025-09',
    message: 'Thinking may not be enabled when tool_choice forces tool use.',
    breach: ({ body }) =>
      body.thinking?.type === 'enabled' && ['any', 'tool'].includes(body.tool_choice?.type) ? {} : null,
  },
  {
    name: 'thinking and temperature',
    source: '?',
    date: '2026-11',
    message: '`temperature` may only be set to 1 when thinking is enabled.',
    breach: ({ body }) => (body.thinking?.type === 'enabled' && (body.temperature ?? 1) !== 1 ? {} : null),
  },
  {
    name: 'thinking before calls',
    source: 'S',
    date: '2026-01',
    message:
      'messages.{i}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks).',
    breach: first(function* (call) {
      if (call.body.thinking?.type !== 'enabled') return
      // Later calls of the turn may follow without thinking: models without interleaved thinking think once.
      const called = [...currentTurn(call)].find(({ content }) => content.some(({ type }) => type === 'tool_use'))
      if (called && !isThinking(called.content[0])) yield { i: called.i, found: called.content[0]!.type }
    }),
  },
  {
    name: 'thinking while disabled',
    source: '1',
    date: '2025-11',
    message:
      'messages.{i}.content.{j}: When thinking is disabled, an `assistant` message in the final position cannot contain `thinking`. To use thinking blocks, enable `thinking` in your request.',
    breach: first(function* (call) {
      if (call.body.thinking?.type !== 'disabled') return
      for (const { i, content } of currentTurn(call)) {
        const j = content.findIndex(isThinking)
        if (j !== -1) yield { i, j }
      }
    }),
  },
  {
    name: 'thinking signature',
    source: 'S',
    date: '2026-04',
    message: 'messages.{i}.content.{j}: Invalid `signature` in `thinking` block',
    breach: first(function* (call) {
      for (const { block, i, j } of allBlocks(call))
        if (block.type === 'thinking' && block.signature !== sign(block.thinking)) yield { i, j }
    }),
  },
  {
    name: 'thinking data',
    source: '?',
    date: '2026-11',
    message: 'messages.{i}.content.{j}: Invalid `data` in `redacted_thinking` block',
    breach: first(function* (call) {
      for (const { block, i, j } of allBlocks(call))
        if (block.type === 'redacted_thinking' && !isSealed(block.data)) yield { i, j }
    }),
  },
  {
    name: 'thinking unchanged',
    source: '1',
    date: '2026-07',
    message:
      'messages.{i}.content.{j}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.',
    breach: first(function* (call) {
      for (const { i, content } of currentTurn(call)) {
        const sent = content.filter(isThinking)
        const issued = call.issued.get(content.find(({ type }) => type === 'tool_use')?.id)
        if (sent.length > 0 && issued && JSON.stringify(sent.map(bare)) !== JSON.stringify(issued)) yield { i, j: 0 }
      }
    }),
  },
  {
    name: 'image type',
    source: 'S',
    date: '2026-11',
    message: "{path}.source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
    breach: first(function* (call) {
      for (const { source, path } of allImages(call))
        if (source?.type === 'base64' && !IMAGES.has(source.media_type)) yield { path }
    }),
  },
  {
    name: 'image size',
    source: 'S',
    date: '2026-09',
    message: '{path}.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels',
    breach: first(function* (call) {
      for (const { source, path } of allImages(call)) if (sentImage(source?.data).longest > 8000) yield { path }
    }),
  },
  {
    name: 'image bytes',
    source: 'S',
    date: '2026-03',
    message: '{path}.source.base64: image exceeds 5 MB maximum: {n} bytes > 5242880 bytes',
    breach: first(function* (call) {
      for (const { source, path } of allImages(call))
        if (source?.data?.length > 5_242_880) yield { path, n: source.data.length }
    }),
  },
  {
    name: 'declared image type',
    source: '1',
    date: '2025-12',
    message: '{path}.source.base64.data: Image does not match the provided media type {type}',
    breach: first(function* (call) {
      for (const { source, path } of allImages(call)) {
        const { type } = sentImage(source?.data)
        if (type && type !== source.media_type) yield { path, type: source.media_type }
      }
    }),
  },
  {
    name: 'size of many images',
    source: 'S',
    date: '2026-09',
    message:
      '{path}.source.base64.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels',
    breach: first(function* (call) {
      const images = [...allImages(call)]
      if (images.length <= MANY_IMAGES) return
      for (const { source, path } of images) if (sentImage(source?.data).longest > 2000) yield { path }
    }),
  },
  {
    name: 'cache breakpoints',
    source: '1',
    date: '2026-11',
    message: 'A maximum of 4 blocks with cache_control may be provided. Found {n}.',
    breach({ body }) {
      const n = JSON.stringify(body).split('"cache_control"').length - 1
      return n > 4 ? { n } : null
    },
  },
]

/** A block of reasoning without the marks of a cache. */
const bare = ({ type, thinking, signature, data }: Block) =>
  type === 'thinking' ? { type, thinking, signature } : { type, data }
