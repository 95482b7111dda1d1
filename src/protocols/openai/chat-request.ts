import { z } from 'zod'
import { parse } from '#core/api/validate.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import type { AllowedTools, ModelMessage, ModelRequest } from '#execution/providers/model-messages.ts'
import { fitsStrictMode, STRICT_TOOLS } from '#execution/providers/structured.ts'
import type { ClientChatRequest, OutputFormat } from './client-request.ts'
import { TextContent, textOf, UserContent, userContentOf } from './content-parts.ts'
import { HistoryBuilder } from './history.ts'
import { type HostedTool, HostedToolField, hostedToolsOf, isHosted } from './hosted-tools.ts'

const name = z.string().min(1).max(255)

const FunctionCall = z.object({ name, arguments: z.string().max(262_144).nullish() })
const CustomCall = z.object({ name, input: z.string().max(262_144) })
const ToolCall = z
  .object({ id: name, function: FunctionCall.optional(), custom: CustomCall.optional() })
  .refine(call => call.function || call.custom, { path: ['function'], message: 'is required' })

type ToolCall = z.output<typeof ToolCall>

/** Returns name and arguments of a call. */
function calledBy({ function: called, custom }: ToolCall): { name: string; arguments: string } {
  if (custom) return { name: custom.name, arguments: argumentsOfInput(custom.input) }
  return { name: called?.name ?? '', arguments: called?.arguments ?? '' }
}

/** Returns the arguments that stand for the text of a call of a custom tool. */
export const argumentsOfInput = (input: string): string => JSON.stringify({ input })

/** Reasoning of the assistant. */
export const ReasoningText = z.string().max(262_144)

const Message = z.discriminatedUnion('role', [
  z.object({ role: z.enum(['system', 'developer']), content: TextContent }),
  z.object({ role: z.literal('user'), content: UserContent }),
  z.object({
    role: z.literal('assistant'),
    content: TextContent.nullish(),
    tool_calls: z.array(ToolCall).max(128).nullish(),
    function_call: FunctionCall.nullish(),
    reasoning_content: ReasoningText.nullish(),
  }),
  z.object({ role: z.literal('tool'), content: TextContent, tool_call_id: name }),
  z.object({ role: z.literal('function'), content: TextContent.nullish(), name }),
])

export const ToolName = z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, 'must be 1 to 64 letters, digits, _ or -')
const MAX_SCHEMA_BYTES = 64 * 1024
export const ToolSchema = z
  .record(z.string(), z.unknown())
  .refine(schema => Buffer.byteLength(JSON.stringify(schema)) <= MAX_SCHEMA_BYTES, 'must be at most 64 KiB')
const FunctionTool = z.object({
  name: ToolName,
  description: z.string().max(4096).nullish(),
  parameters: ToolSchema.nullish(),
  strict: z.boolean().nullish(),
})
/** A kind of tool, or of choice, other than a function: it is ignored. */
export const OtherKind = z.object({
  type: z.string().refine(type => type !== 'function' && type !== 'allowed_tools', 'must have the fields of its type'),
})
/** A tool that is ignored. */
export const OtherTool = OtherKind.refine(({ type }) => !isHosted(type), 'must have the fields of its type')
const FunctionField = z.object({ type: z.literal('function'), function: FunctionTool })
type FunctionField = z.output<typeof FunctionField>
const isFunction = (tool: { type: string }): tool is FunctionField => tool.type === 'function'
/** Checked by its type: the problems of a union would not name the field. */
const Tool = z.looseObject({ type: z.string() }).transform((tool, context) => {
  const schema = isFunction(tool) ? FunctionField : isHosted(tool.type) ? HostedToolField : OtherTool
  const parsed = schema.safeParse(tool)
  if (parsed.success) return parsed.data
  for (const { path, message } of parsed.error.issues)
    context.issues.push({ code: 'custom', path: [...path], message, input: tool })
  return z.NEVER
})

const Choice = z.union([
  z.enum(['none', 'auto', 'required']),
  z.object({
    type: z.literal('allowed_tools'),
    allowed_tools: z.object({
      mode: z.enum(['auto', 'required']),
      tools: z
        .array(z.union([z.object({ type: z.literal('function'), function: z.object({ name }) }), OtherKind]))
        .max(128),
    }),
  }),
  z.object({ type: z.literal('function'), function: z.object({ name }) }),
  OtherKind,
])

const Format = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text') }),
  z.object({ type: z.literal('json_object') }),
  z.object({
    type: z.literal('json_schema'),
    json_schema: z.object({ schema: z.record(z.string(), z.unknown()) }),
  }),
])

const tokens = z.int().min(1).max(2_147_483_647)

/** Settings that are passed to the model by their names. */
export const settingFields = {
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  service_tier: z.string().max(64).nullish(),
  prompt_cache_key: z.string().max(1024).nullish(),
  parallel_tool_calls: z.boolean().nullish(),
}

export const userFields = {
  user: z.union([z.string().max(255), z.object({ id: z.string().max(255) })]).nullish(),
  safety_identifier: z.string().max(255).nullish(),
  metadata: z.record(z.string(), z.unknown()).nullish(),
}

const chatSettings = {
  ...settingFields,
  seed: z.int().nullish(),
  stop: z.union([z.string().max(1024), z.array(z.string().min(1).max(1024)).max(4)]).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  logit_bias: z.record(z.string(), z.number().min(-100).max(100)).nullish(),
  reasoning_effort: z.string().max(64).nullish(),
  verbosity: z.string().max(64).nullish(),
}

const ChatRequest = z.object({
  model: z.string().min(1).max(512),
  messages: z.array(Message).min(1).max(500),
  stream: z.boolean().nullish(),
  stream_options: z.object({ include_usage: z.boolean().nullish() }).nullish(),
  n: z.literal(1, 'must be 1').nullish(),
  store: z.boolean().nullish(),
  tools: z.array(Tool).max(128).nullish(),
  tool_choice: Choice.nullish(),
  web_search_options: z.record(z.string(), z.unknown()).nullish(),
  functions: z.array(FunctionTool).max(128).nullish(),
  function_call: z.union([z.enum(['none', 'auto']), z.object({ name })]).nullish(),
  response_format: Format.nullish(),
  max_tokens: tokens.nullish(),
  max_completion_tokens: tokens.nullish(),
  ...chatSettings,
  ...userFields,
})
type Body = z.output<typeof ChatRequest>

/** Returns the names of the fields that are set, null being absent, and that the mount does not support. */
export const unknownFields = (body: unknown, known: object): string[] =>
  Object.entries((body ?? {}) as object).flatMap(([field, value]) =>
    value === null || Object.hasOwn(known, field) ? [] : [field],
  )

/** Returns the names of fields that are set. */
const namesSet = (body: Body, names: readonly (keyof Body)[]): string[] => names.filter(name => body[name] != null)

/** Returns the names of known fields that other fields replace, and of choices without tools. */
const replacedFields = (body: Body): string[] => [
  ...(body.tools ? namesSet(body, ['functions', 'function_call']) : []),
  ...(body.tools?.length || (!body.tools && body.functions?.length)
    ? []
    : namesSet(body, ['tool_choice', 'function_call'])),
  ...(!body.tools && body.function_call ? namesSet(body, ['tool_choice']) : []),
  ...(body.max_completion_tokens ? namesSet(body, ['max_tokens']) : []),
]

/** Returns the end user that a body names; null for none. */
export const userOf = ({ user, safety_identifier }: Pick<Body, 'user' | 'safety_identifier'>): string | null =>
  safety_identifier || (typeof user === 'string' ? user : user?.id) || null

/** Returns the key of the conversation in the metadata of a body. @throws VALIDATION_FAILED */
export function sessionKeyOf({ metadata }: Pick<Body, 'metadata'>): string | null {
  const key = metadata?.session_key ?? null
  if (key !== null && (typeof key !== 'string' || key.length > 255))
    return raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'metadata.session_key',
      message: 'must be at most 255 characters',
    })
  return key || null
}

const formatOf = (format: z.output<typeof Format> | null | undefined): OutputFormat =>
  format?.type === 'json_schema'
    ? { type: 'json_schema', schema: format.json_schema.schema }
    : (format ?? { type: 'text' })

export const toolOf = (tool: z.output<typeof FunctionTool>): ModelRequest['tools'][number] => ({
  name: tool.name,
  description: tool.description ?? '',
  parameters: tool.parameters ?? { type: 'object', properties: {} },
  ...(tool.strict && isStrict(tool) && { strict: true }),
})

/** Whether a vendor can constrain the calls of a tool to its schema, if the client requires it. */
const isStrict = ({ strict, parameters }: Pick<z.output<typeof FunctionTool>, 'strict' | 'parameters'>): boolean =>
  !strict || (!!parameters && fitsStrictMode(parameters))

/** Returns the name of the setting if tools with schemas that cannot be strict require it. */
export const ignoredStrictness = (tools: readonly Parameters<typeof isStrict>[0][]): string[] =>
  tools.every(isStrict) ? [] : [STRICT_TOOLS]

const functionsOf = (tools: Body['tools']) => (tools ?? []).flatMap(tool => (isFunction(tool) ? tool.function : []))

/** Returns the names of tools, choices and settings of tools that are ignored. */
const ignoredTools = ({ tools, functions, tool_choice }: Body): string[] => [
  ...(tools?.some(tool => !isFunction(tool) && !isHosted(tool.type)) ? ['tools'] : []),
  ...(typeof tool_choice === 'object' && tool_choice && !isKnownChoice(tool_choice) ? ['tool_choice'] : []),
  ...ignoredStrictness([...functionsOf(tools), ...(functions ?? [])]),
]

const isKnownChoice = (choice: object): boolean => 'function' in choice || 'allowed_tools' in choice

/** Returns the functions among the tools that a choice allows; null if it is of another kind. */
function allowedBy(choice: Body['tool_choice']): AllowedTools | null {
  if (typeof choice !== 'object' || choice === null || !('allowed_tools' in choice)) return null
  const { mode, tools } = choice.allowed_tools
  const tool_names = tools.flatMap(tool => ('function' in tool ? tool.function.name : []))
  return { type: 'allowed_tools', mode, tool_names }
}

function toolsOf(
  body: Body,
  hosted: HostedTool[],
): Pick<ClientChatRequest, 'tools' | 'hosted' | 'tool_choice' | 'tool_fields'> {
  const { tools, functions, tool_choice, function_call } = body
  const isOldForm = !tools && !!functions
  const defined = (isOldForm ? functions : functionsOf(tools)).map(toolOf)
  const hasFunctions = defined.length > 0 || hosted.length === 0
  const choice = isOldForm && typeof function_call === 'object' ? function_call?.name : null
  return {
    tools: defined,
    hosted,
    // Hosted tools are named by themselves, and are not chosen by name.
    tool_fields: hasFunctions
      ? namesSet(body, isOldForm ? ['functions', 'function_call', 'tool_choice'] : ['tools', 'tool_choice'])
      : [],
    tool_choice: checkedChoice(
      defined,
      choice ??
        (tool_choice && typeof tool_choice === 'object' && 'function' in tool_choice
          ? tool_choice.function.name
          : null),
      (isOldForm ? (typeof function_call === 'string' ? function_call : null) : null) ??
        (typeof tool_choice === 'string' && hasFunctions ? tool_choice : null),
      isOldForm ? null : allowedBy(tool_choice),
    ),
  }
}

/** Returns the choice of a tool by name, by mode or among some. @throws VALIDATION_FAILED for duplicate tools and unknown names */
export function checkedChoice(
  tools: ModelRequest['tools'],
  forced: string | null,
  mode: 'none' | 'auto' | 'required' | null,
  allowed: AllowedTools | null,
): ModelRequest['tool_choice'] {
  const names = new Set(tools.map(tool => tool.name))
  const invalid = (path: string, message: string) => raiseInvalid({ code: 'INVALID_VALUE', path, message })
  if (names.size < tools.length) invalid('tools', 'must have unique names')
  if (forced !== null && !names.has(forced)) invalid('tool_choice', 'must name one of the tools')
  if (mode === 'required' && tools.length === 0) invalid('tool_choice', 'requires tools')
  if (allowed) {
    if (tools.length === 0) return null
    if (allowed.tool_names.some(each => !names.has(each))) invalid('tool_choice', 'must name tools of the request')
    return allowed.tool_names.length > 0 ? allowed : 'none'
  }
  if (forced !== null) return { type: 'tool', tool_name: forced }
  return tools.length > 0 ? mode : null
}

/** Returns fields of a body that are set, without null. */
const setFields = (body: Record<string, unknown>, names: object): Record<string, unknown> =>
  Object.fromEntries(Object.keys(names).flatMap(field => (body[field] == null ? [] : [[field, body[field]]])))

export const settingsOf = (body: Record<string, unknown>, names: object): ClientChatRequest['settings'] => {
  const { stop, ...settings } = setFields(body, names) as ClientChatRequest['settings'] & { stop?: string | string[] }
  const stops = typeof stop === 'string' ? [stop] : stop
  return { ...settings, ...(stops?.length && { stop: stops }) }
}

/** Returns the system texts and the other messages. @throws VALIDATION_FAILED */
function messagesOf({ messages }: Body): { instructions: string | null; messages: ModelMessage[] } {
  const system: string[] = []
  const history = new HistoryBuilder({ messages: 'messages', callId: 'tool_call_id' })
  for (const [index, message] of messages.entries()) {
    const path = `messages[${index}]`
    switch (message.role) {
      case 'system':
      case 'developer':
        system.push(textOf(message.content))
        break
      case 'user':
        history.addUser(userContentOf(message.content, `${path}.content`))
        break
      case 'assistant': {
        const { tool_calls, function_call } = message
        const old: ToolCall[] = function_call ? [{ id: `call_${function_call.name}`, function: function_call }] : []
        const calls = (tool_calls?.length ? tool_calls : old).map(call => ({ id: call.id, ...calledBy(call) }))
        history.addAssistant(textOf(message.content), calls, message.reasoning_content)
        break
      }
      case 'tool':
        history.addResult(message.tool_call_id, textOf(message.content), path)
        break
      case 'function':
        history.addResult(`call_${message.name}`, textOf(message.content), path, 'name')
    }
  }
  return { instructions: joinTexts(system), messages: history.finish() }
}

export const joinTexts = (texts: readonly string[]): string | null =>
  texts.filter(text => text.trim() !== '').join('\n\n') || null

/**
 * Returns a request for a chat completion. Unknown fields are ignored and named.
 * @throws VALIDATION_FAILED for a known field of another type
 */
export function parseChatRequest(body: unknown): {
  request: ClientChatRequest
  include_usage: boolean
  ignored: string[]
} {
  const parsed = parse(ChatRequest, body ?? {})
  const { instructions, messages } = messagesOf(parsed)
  const { hosted, ignored } = hostedToolsOf(parsed.tools ?? [], parsed.web_search_options)
  const request: ClientChatRequest = {
    model: parsed.model,
    instructions,
    messages,
    ...toolsOf(parsed, hosted),
    settings: settingsOf(parsed, chatSettings),
    max_output_tokens: parsed.max_completion_tokens ?? parsed.max_tokens ?? null,
    format: formatOf(parsed.response_format),
    stream: parsed.stream ?? false,
    store: parsed.store ?? null,
    user: userOf(parsed),
    session_key: sessionKeyOf(parsed),
  }
  return {
    request,
    include_usage: parsed.stream_options?.include_usage ?? false,
    ignored: [
      ...unknownFields(body, ChatRequest.shape),
      ...replacedFields(parsed),
      ...ignoredTools(parsed),
      ...ignored,
    ],
  }
}
