import { functionSchemaRules, strictAnswerRule } from './function-schemas.ts'
import { dataUrl, sentImage } from './image-size.ts'
import { openaiImageRule } from './openai-images.ts'
import { type Call, first, type Rule } from './rules.ts'
import { isSealed } from './signatures.ts'

/** Fact about an item that the vendor issued. */
export type IssuedItem = { call_id?: string; reasoning?: string; stored: boolean }

export const functionsOf = ({ body }: Pick<Call, 'body'>) =>
  ((body.tools ?? []) as any[]).flatMap((tool, i) =>
    tool.type === 'function' ? [{ i, name: tool.name as string, schema: tool.parameters, strict: tool.strict }] : [],
  )

const items = ({ body }: Call): any[] => (Array.isArray(body.input) ? body.input : [])
const fact = (call: Call, id: string) => call.issued.get(id) as IssuedItem | undefined
const reasons = (model: string): boolean => /(^|[-/])(gpt-[56]|o[134])(-|\.|$)/.test(model)

/** Returns the ID of the call that an item is, or that it refers to. */
const calledBy = (call: Call, item: any): string | undefined =>
  item.type === 'function_call'
    ? item.call_id
    : item.type === 'item_reference'
      ? fact(call, item.id)?.call_id
      : undefined

/** Images of messages and of results. */
const images = (call: Call): { type: string; data: string }[] =>
  items(call).flatMap(({ content, output }) =>
    [content, output].flatMap(list =>
      (Array.isArray(list) ? list : []).flatMap(part =>
        part.type === 'input_image' ? (dataUrl(part.image_url) ?? []) : [],
      ),
    ),
  )

const pairing: readonly Rule[] = [
  {
    name: 'result missing',
    source: 'S',
    date: '2026-04',
    message: 'No tool output found for function call {id}.',
    error: { param: 'input' },
    breach: first(function* (call) {
      const results = new Set(items(call).flatMap(item => (item.type === 'function_call_output' ? item.call_id : [])))
      for (const item of items(call)) {
        const id = calledBy(call, item)
        if (id !== undefined && !results.has(id)) yield { id }
      }
    }),
  },
  {
    name: 'result unexpected',
    source: 'S',
    date: '2026-04',
    message: 'No tool call found for function call output with call_id {id}.',
    error: { param: 'input' },
    breach: first(function* (call) {
      const called = new Set<string | undefined>()
      for (const item of items(call)) {
        called.add(calledBy(call, item))
        if (item.type === 'function_call_output' && !called.has(item.call_id)) yield { id: item.call_id }
      }
    }),
  },
]

export const responsesRules: readonly Rule[] = [
  ...pairing,
  {
    name: 'item not stored',
    source: 'S',
    date: '2026-09',
    message:
      "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input.",
    error: { status: 404, param: 'input' },
    breach: first(function* (call) {
      for (const { type, id, encrypted_content } of items(call)) {
        const refers = type === 'item_reference' || (type === 'reasoning' && !encrypted_content)
        if (refers && fact(call, id)?.stored !== true) yield { id }
      }
    }),
  },
  {
    name: 'reasoning alone',
    source: '?',
    date: '2026-09',
    message: "Item '{id}' of type 'reasoning' was provided without its required following item.",
    error: { param: 'input' },
    breach: first(function* (call) {
      for (const [i, item] of items(call).entries()) {
        const next = items(call)[i + 1]
        const follows = ['function_call', 'reasoning', 'item_reference', 'message'].includes(next?.type)
        if (item.type === 'reasoning' && !follows && next?.role !== 'assistant') yield { id: item.id }
      }
    }),
  },
  {
    name: 'call without reasoning',
    source: '?',
    date: '2026-09',
    message: "Item '{id}' of type 'function_call' was provided without its required 'reasoning' item: '{reasoning}'.",
    error: { param: 'input' },
    breach: first(function* (call) {
      const sent = new Set(items(call).map(({ id }) => id))
      for (const { type, id } of items(call)) {
        const reasoning = type === 'function_call' && id ? fact(call, id)?.reasoning : undefined
        if (reasoning !== undefined && !sent.has(reasoning)) yield { id, reasoning }
      }
    }),
  },
  {
    name: 'encrypted reasoning',
    source: '?',
    date: '2026-11',
    message: 'The encrypted content for item {id} could not be verified.',
    error: { code: 'invalid_encrypted_content' },
    breach: first(function* (call) {
      for (const { type, id, encrypted_content } of items(call))
        if (type === 'reasoning' && encrypted_content && !isSealed(encrypted_content)) yield { id }
    }),
  },
  {
    name: 'sampling',
    source: 'S',
    date: '2026-04',
    message: "Unsupported parameter: '{field}' is not supported with this model.",
    error: { param: '{field}' },
    breach: first(function* ({ model, body }) {
      for (const field of ['temperature', 'top_p']) if (reasons(model) && body[field] !== undefined) yield { field }
    }),
  },
  {
    name: 'fewest output tokens',
    source: '?',
    date: '2026-11',
    message: "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got {n} instead.",
    error: { code: 'integer_below_min_value', param: 'max_output_tokens' },
    breach: ({ body }) => (body.max_output_tokens < 16 ? { n: body.max_output_tokens } : null),
  },
  {
    name: 'call id',
    source: 'S',
    date: '2026-07',
    message:
      "Invalid 'input[{i}].call_id': string too long. Expected a string with maximum length 64, but got a string with length {n} instead.",
    error: { code: 'string_above_max_length', param: 'input[{i}].call_id' },
    breach: first(function* (call) {
      for (const [i, { call_id: id }] of items(call).entries()) if (id?.length > 64) yield { i, n: id.length }
    }),
  },
  {
    name: 'item id',
    source: '?',
    date: '2026-11',
    message: "Invalid 'input[{i}].id': '{id}'. Expected an ID that begins with '{prefix}'.",
    error: { code: 'invalid_value', param: 'input[{i}].id' },
    breach: first(function* (call) {
      const prefixes: Record<string, string> = { function_call: 'fc', reasoning: 'rs', message: 'msg' }
      for (const [i, { type, id }] of items(call).entries())
        if (id && prefixes[type] && !id.startsWith(prefixes[type])) yield { i, id, prefix: prefixes[type]! }
    }),
  },
  {
    name: 'hosted tools without reasoning',
    source: 'S',
    date: '2026-05',
    message: "The following tools cannot be used with reasoning.effort 'minimal': {type}.",
    error: { param: 'tools' },
    breach: first(function* ({ body }) {
      for (const { type } of body.tools ?? [])
        if (body.reasoning?.effort === 'minimal' && /^(web_search|code_interpreter)$/.test(type)) yield { type }
    }),
  },
  {
    name: 'container',
    source: 'S',
    date: '2026-05',
    message: "Missing required parameter: 'tools[{i}].container'.",
    error: { code: 'missing_required_parameter', param: 'tools[{i}].container' },
    breach: first(function* ({ body }) {
      for (const [i, { type, container }] of (body.tools ?? []).entries())
        if (type === 'code_interpreter' && !container) yield { i }
    }),
  },
  {
    name: 'tool name',
    source: 'S',
    date: '2026-11',
    message:
      "Invalid 'tools[{i}].name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
    error: { code: 'invalid_value', param: 'tools[{i}].name' },
    breach: first(function* (call) {
      for (const { i, name } of functionsOf(call)) if (!/^[a-zA-Z0-9_-]{1,64}$/.test(name)) yield { i }
    }),
  },
  openaiImageRule(images),
  ...functionSchemaRules(functionsOf, 'tools[{i}].parameters'),
  strictAnswerRule(body => body.text?.format, 'text.format.schema', {
    error: { param: 'text.format.schema', code: 'invalid_json_schema' },
  }),
]

export const xaiRules: readonly Rule[] = [
  {
    name: 'image format',
    source: '1',
    date: '2025-07',
    message: 'Invalid request content: Downloaded response does not contain a valid JPG or PNG image.',
    breach: first(function* (call) {
      for (const { type, data } of images(call)) if (!/^image\/(png|jpeg)$/.test(sentImage(data).type ?? type)) yield {}
    }),
  },
  ...pairing.map((rule): Rule => ({ ...rule, source: '?', date: '2026-11' })),
  {
    name: 'sampling',
    source: '?',
    date: '2026-11',
    message: 'Model {model} does not support parameter {field}.',
    breach: first(function* ({ model, body }) {
      for (const field of ['presence_penalty', 'frequency_penalty', 'stop'])
        if (model.startsWith('grok-4') && body[field] !== undefined) yield { model, field }
    }),
  },
]
