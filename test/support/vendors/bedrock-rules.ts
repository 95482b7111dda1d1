import { claudeRules } from './anthropic-rules.ts'
import { claudeModel } from './claude.ts'
import { sentImage } from './image-size.ts'
import { type Call, first, type Rule, wrapped } from './rules.ts'
import { nodes, UNIONS } from './schemas.ts'
import { sign } from './signatures.ts'

const messages = ({ body }: Call): any[] => body.messages ?? []
const content = (message: any): any[] => message?.content ?? []
const ids = (message: any, key: 'toolUse' | 'toolResult'): string[] =>
  content(message).flatMap(block => (block[key] ? [block[key].toolUseId] : []))
const isClaude = ({ model }: Call): boolean => claudeModel(model) !== null

/** What the model itself refuses, in the wrapper of the cloud. */
const OF_MODEL = 'The model returned the following errors: '

function* blocks(call: Call): Generator<{ block: any; i: number; j: number }> {
  for (const [i, message] of messages(call).entries())
    for (const [j, block] of content(message).entries()) yield { block, i, j }
}

const specs = (call: Call): [number, any][] =>
  [...(call.body.toolConfig?.tools ?? []).entries()].flatMap(([i, { toolSpec }]) => (toolSpec ? [[i, toolSpec]] : []))

/** Members that must match a pattern: names and IDs of tools. */
function* members(call: Call): Generator<{ member: string; value: string }> {
  for (const [i, { name }] of specs(call))
    yield { member: `toolConfig.tools.${i + 1}.member.toolSpec.name`, value: name }
  for (const { block, i, j } of blocks(call)) {
    const path = `messages.${i + 1}.member.content.${j + 1}.member`
    if (block.toolUse) {
      yield { member: `${path}.toolUse.toolUseId`, value: block.toolUse.toolUseId }
      yield { member: `${path}.toolUse.name`, value: block.toolUse.name }
    }
    if (block.toolResult) yield { member: `${path}.toolResult.toolUseId`, value: block.toolResult.toolUseId }
  }
}

/** Images of messages and of results. */
const images = (call: Call): { image: any; path: string }[] =>
  [...blocks(call)].flatMap(({ block, i, j }) => {
    const path = `messages.${i}.content.${j}`
    const inner = (block.toolResult?.content ?? []) as any[]
    return [
      ...(block.image ? [{ image: block.image, path }] : []),
      ...inner.flatMap(({ image }, k) => (image ? [{ image, path: `${path}.toolResult.content.${k}` }] : [])),
    ]
  })

/** Images of a request above which a lower limit of their sides holds. */
const MANY_IMAGES = 20

const imageRules: readonly Rule[] = [
  {
    name: 'image format',
    source: 'S',
    date: '2026-11',
    message:
      "1 validation error detected: Value '{format}' at '{path}.image.format' failed to satisfy constraint: Member must satisfy enum value set: [gif, jpeg, png, webp]",
    breach: first(function* (call) {
      for (const { image, path } of images(call))
        if (!['gif', 'jpeg', 'png', 'webp'].includes(image.format)) yield { path, format: image.format }
    }),
  },
  {
    name: 'image size',
    source: 'S',
    date: '2026-09',
    message: `${OF_MODEL}{path}.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels`,
    breach: first(function* (call) {
      for (const { image, path } of images(call)) if (sentImage(image.source?.bytes).longest > 8000) yield { path }
    }),
  },
  {
    name: 'image bytes',
    source: 'S',
    date: '2026-09',
    message: `${OF_MODEL}{path}.image.source.bytes: image exceeds 5 MB maximum: {n} bytes > 5242880 bytes`,
    breach: first(function* (call) {
      for (const { image, path } of images(call))
        if (image.source?.bytes?.length > 5_242_880) yield { path, n: image.source.bytes.length }
    }),
  },
  {
    name: 'size of many images',
    source: 'S',
    date: '2026-09',
    message: `${OF_MODEL}{path}.image.source.base64.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels`,
    breach: first(function* (call) {
      const sent = images(call)
      if (sent.length <= MANY_IMAGES) return
      for (const { image, path } of sent) if (sentImage(image.source?.bytes).longest > 2000) yield { path }
    }),
  },
  {
    name: 'document bytes',
    source: '1',
    date: '2026-11',
    message: 'The size of a document must be at most 4.5 MB.',
    breach: first(function* (call) {
      for (const { block } of blocks(call))
        if (Buffer.byteLength(block.document?.source?.bytes ?? '', 'base64') > 4_500_000) yield {}
    }),
  },
]

export const bedrockRules: readonly Rule[] = [
  {
    name: 'member pattern',
    source: 'S',
    date: '2026-11',
    message:
      "1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+",
    breach: first(function* (call) {
      for (const found of members(call)) if (!/^[a-zA-Z0-9_-]+$/.test(found.value)) yield found
    }),
  },
  {
    name: 'member length',
    source: 'S',
    date: '2026-11',
    message:
      "1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint: Member must have length less than or equal to 64",
    breach: first(function* (call) {
      for (const found of members(call)) if (found.value.length > 64) yield found
    }),
  },
  {
    name: 'begins with user',
    source: 'S',
    date: '2026-03',
    message:
      'A conversation must start with a user message. Try again with a conversation that starts with a user message.',
    breach: call => (messages(call)[0]?.role === 'user' ? null : {}),
  },
  {
    name: 'roles alternate',
    source: 'S',
    date: '2025-04',
    message:
      'A conversation must alternate between user and assistant roles. Make sure the conversation alternates between user and assistant roles and try again.',
    breach: call => (messages(call).some(({ role }, i) => role === messages(call)[i - 1]?.role) ? {} : null),
  },
  {
    name: 'ends with user',
    source: 'S',
    date: '2026-11',
    message: `${OF_MODEL}This model does not support assistant message prefill. The conversation must end with a user message.`,
    breach: call =>
      claudeModel(call.model)?.prefill === false && messages(call).at(-1)?.role === 'assistant' ? {} : null,
  },
  {
    name: 'ends with user at other makers',
    source: '1',
    date: '2025-04',
    message:
      'The model that you are using requires the last turn in the conversation to be a user message. Add a user message to the conversation and try again.',
    breach: call => (!isClaude(call) && messages(call).at(-1)?.role === 'assistant' ? {} : null),
  },
  {
    name: 'blank text',
    source: 'S',
    date: '2026-07',
    message:
      'The text field in the ContentBlock object at messages.{i}.content.{j} is blank. Add text to the text field, and try again.',
    breach: first(function* (call) {
      for (const { block, i, j } of blocks(call))
        if (typeof block.text === 'string' && block.text.trim() === '') yield { i, j }
    }),
  },
  {
    name: 'empty message',
    source: '1',
    date: '2026-04',
    message:
      'The content field in the Message object at messages.{i} is empty. Add a ContentBlock object to the content field and try again.',
    breach: first(function* (call) {
      for (const [i, message] of messages(call).entries()) if (content(message).length === 0) yield { i }
    }),
  },
  {
    name: 'tools of the history',
    source: 'S',
    date: '2026-06',
    message: 'The toolConfig field must be defined when using toolUse and toolResult content blocks.',
    breach: first(function* (call) {
      if (call.body.toolConfig) return
      for (const { block } of blocks(call)) if (block.toolUse || block.toolResult) yield {}
    }),
  },
  {
    name: 'result missing',
    source: '1',
    date: '2026-11',
    message: 'Expected toolResult blocks at messages.{i}.content for the following Ids: {ids}',
    breach: first(function* (call) {
      for (const [i, message] of messages(call).entries()) {
        const results = new Set(ids(messages(call)[i + 1], 'toolResult'))
        const missing = ids(message, 'toolUse').filter(id => !results.has(id))
        if (missing.length > 0) yield { i: i + 1, ids: missing.join(', ') }
      }
    }),
  },
  {
    name: 'result unexpected',
    source: 'S',
    date: '2026-01',
    message:
      'The number of toolResult blocks at messages.{i}.content exceeds the number of toolUse blocks of previous turn.',
    breach: first(function* (call) {
      for (const [i, message] of messages(call).entries())
        if (ids(message, 'toolResult').length > ids(messages(call)[i - 1], 'toolUse').length) yield { i }
    }),
  },
  {
    name: 'empty failed result',
    source: '1',
    date: '2026-06',
    message: 'The content field at messages.{i}.content.{j}.toolResult cannot be empty when status value is error.',
    breach: first(function* (call) {
      for (const { block, i, j } of blocks(call))
        if (block.toolResult?.status === 'error' && content(block.toolResult).length === 0) yield { i, j }
    }),
  },
  {
    name: 'blank result',
    source: '1',
    date: '2026-04',
    message:
      'The text field in the ContentBlock object at messages.{i}.content.{j}.toolResult.content.{k} is blank. Add text to the text field, and try again.',
    breach: first(function* (call) {
      for (const { block, i, j } of blocks(call))
        for (const [k, { text }] of content(block.toolResult).entries())
          if (typeof text === 'string' && text.trim() === '') yield { i, j, k }
    }),
  },
  {
    name: 'document alone',
    source: '1',
    date: '2026-04',
    message: 'A text block must be included when using documents.',
    breach: first(function* (call) {
      for (const message of messages(call))
        if (content(message).some(block => block.document) && !content(message).some(block => 'text' in block)) yield {}
    }),
  },
  ...imageRules,
  ...wrapped(claudeRules, OF_MODEL),
  {
    name: 'schema union at the top',
    source: 'S',
    date: '2026-11',
    message: `${OF_MODEL}tools.{i}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level`,
    breach: first(function* (call) {
      for (const [i, { inputSchema }] of specs(call))
        if (isClaude(call) && UNIONS.some(key => key in inputSchema.json)) yield { i }
    }),
  },
  {
    name: 'schema type',
    source: '?',
    date: '2026-11',
    message: 'The value at toolConfig.tools.{i}.toolSpec.inputSchema.json.type must be one of the following: object.',
    breach: first(function* (call) {
      for (const [i, { inputSchema }] of specs(call)) if (inputSchema.json?.type !== 'object') yield { i }
    }),
  },
  {
    name: 'schema keys',
    source: 'S',
    date: '2026-11',
    message: `${OF_MODEL}tools.{i}.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'`,
    breach: first(function* (call) {
      for (const [i, { inputSchema }] of specs(call))
        for (const { schema } of nodes(inputSchema.json))
          if (isClaude(call) && Object.keys(schema.properties ?? {}).some(key => !/^[a-zA-Z0-9_.-]{1,64}$/.test(key)))
            yield { i }
    }),
  },
  {
    name: 'thinking before calls',
    source: 'S',
    date: '2026-01',
    message: `${OF_MODEL}messages.{i}.content.0.type: Expected \`thinking\` or \`redacted_thinking\`, but found \`tool_use\`.`,
    breach: first(function* (call) {
      if (call.body.additionalModelRequestFields?.thinking?.type !== 'enabled') return
      const start = messages(call).findLastIndex(
        message => message.role === 'user' && ids(message, 'toolResult').length === 0,
      )
      const i = messages(call).findIndex((message, at) => at > start && ids(message, 'toolUse').length > 0)
      if (i !== -1 && !content(messages(call)[i])[0]?.reasoningContent) yield { i }
    }),
  },
  {
    name: 'thinking signature',
    source: 'S',
    date: '2026-05',
    message: `${OF_MODEL}messages.{i}.content.{j}: Invalid \`signature\` in \`thinking\` block`,
    breach: first(function* (call) {
      for (const { block, i, j } of blocks(call)) {
        const thought = block.reasoningContent?.reasoningText
        if (thought && thought.signature !== sign(thought.text)) yield { i, j }
      }
    }),
  },
]
