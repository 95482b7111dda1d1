import type { IncomingHttpHeaders } from 'node:http'

/** The two kinds of model request. */
export type RequestKind = 'chat' | 'embeddings'

/** A message for conditions and templates; `name` is the name of the tool in tool messages. */
export type DoubleMessage = { role: string; text: string; name?: string | undefined }

/** A function offered to the model; `parameters` is its JSON Schema. */
export type OfferedTool = { name: string; parameters: unknown }

/** A parsed model request. */
export type DoubleRequest = {
  kind: RequestKind
  lane: string
  /** Ordinal of this request among requests of its kind in the lane, from 1. */
  call: number
  /** The requested model as sent. */
  requested: string
  /** The requested model without a prefix that selected the lane. */
  model: string
  headers: IncomingHttpHeaders
  messages: DoubleMessage[]
  /** The last user text; for embeddings the last input. */
  user: string
  /** All system texts, joined by line ends. */
  system: string
  tools: OfferedTool[]
  /** `auto`, `required`, `none`, or the function that must be called. */
  toolChoice: string | { name: string }
  /** Whether a stream is requested. */
  stream: boolean
  /** Whether JSON is requested, with or without a schema. */
  json: boolean
  /** The requested schema. */
  schema: unknown
  body: RequestBody
}

/** A parsed JSON object. */
export type RequestBody = Record<string, unknown>

/** Whether a JSON value is an object. */
export function isJsonObject(value: unknown): value is RequestBody {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The part of a request that is available before its body is parsed. */
export type AddressedRequest = {
  kind: RequestKind
  lane: string
  call: number
  model: string
  headers: IncomingHttpHeaders
}

/** Parses the body of a chat completion request. Returns an error message for an invalid body. */
export function readChat(to: AddressedRequest, body: RequestBody): DoubleRequest | string {
  if (typeof body.model !== 'string') return 'model must be a string'
  if (!Array.isArray(body.messages) || body.messages.length === 0) return 'messages must be a non-empty array'
  if (!body.messages.every(each => isJsonObject(each) && typeof each.role === 'string'))
    return 'every message must be an object with a role'
  if (body.tools != null && !Array.isArray(body.tools)) return 'tools must be an array'
  const messages = readMessages(body.messages as RequestBody[])
  const format = isJsonObject(body.response_format) ? body.response_format : {}
  const tools = readTools(body.tools)
  return {
    ...to,
    requested: body.model,
    messages,
    user: messages.findLast(each => each.role === 'user')?.text ?? '',
    system: messages
      .filter(each => each.role === 'system' || each.role === 'developer')
      .map(each => each.text)
      .join('\n'),
    tools,
    toolChoice: readToolChoice(body.tool_choice, tools.length > 0),
    stream: body.stream === true,
    json: format.type === 'json_schema' || format.type === 'json_object',
    schema:
      format.type === 'json_schema' && isJsonObject(format.json_schema) ? (format.json_schema.schema ?? {}) : undefined,
    body,
  }
}

/**
 * Parses the body of an embeddings request; each input counts as a user message. Returns an error message for an
 * invalid body.
 */
export function readEmbeddings(to: AddressedRequest, body: RequestBody): DoubleRequest | string {
  if (typeof body.model !== 'string') return 'model must be a string'
  const inputs = typeof body.input === 'string' ? [body.input] : body.input
  if (!Array.isArray(inputs) || inputs.length === 0) return 'input must be a string or a non-empty array of strings'
  if (!inputs.every(each => typeof each === 'string')) return 'token arrays are not supported: input must be text'
  return {
    ...to,
    requested: body.model,
    messages: inputs.map(text => ({ role: 'user', text })),
    user: inputs[inputs.length - 1],
    system: '',
    tools: [],
    toolChoice: 'none',
    stream: false,
    json: false,
    schema: undefined,
    body,
  }
}

function readMessages(list: RequestBody[]): DoubleMessage[] {
  const calls = new Map<string, string>()
  return list.map(message => {
    for (const call of Array.isArray(message.tool_calls) ? message.tool_calls : [])
      if (isJsonObject(call) && isJsonObject(call.function) && typeof call.id === 'string')
        calls.set(call.id, String(call.function.name))
    const role = message.role as string
    const text = contentText(message.content)
    if (role !== 'tool') return { role, text }
    const name = typeof message.name === 'string' ? message.name : calls.get(String(message.tool_call_id))
    return { role, text, name }
  })
}

function contentText(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return ''
  return content
    .map(part => (isJsonObject(part) && typeof part.text === 'string' ? part.text : undefined))
    .filter(text => text !== undefined)
    .join('\n')
}

function readTools(tools: unknown): OfferedTool[] {
  if (!Array.isArray(tools)) return []
  return tools
    .filter(tool => isJsonObject(tool) && isJsonObject(tool.function) && typeof tool.function.name === 'string')
    .map(tool => ({ name: tool.function.name, parameters: tool.function.parameters }))
}

function readToolChoice(choice: unknown, offered: boolean): string | { name: string } {
  if (typeof choice === 'string') return choice
  if (isJsonObject(choice) && isJsonObject(choice.function)) return { name: String(choice.function.name) }
  return offered ? 'auto' : 'none'
}
