import { z } from 'zod'
import { parse } from '#core/api/validate.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import type { AllowedTools } from '#execution/providers/model-messages.ts'
import {
  argumentsOfInput,
  checkedChoice,
  ignoredStrictness,
  joinTexts,
  OtherKind,
  OtherTool,
  ReasoningText,
  sessionKeyOf,
  settingFields,
  settingsOf,
  ToolName,
  ToolSchema,
  toolOf,
  unknownFields,
  userFields,
  userOf,
} from './chat-request.ts'
import type { ClientChatRequest, OutputFormat } from './client-request.ts'
import { TextContent, TextContentPart, textOf, UserContent, userContentOf } from './content-parts.ts'
import { HistoryBuilder } from './history.ts'
import { HostedToolField, hostedToolsOf, isHosted } from './hosted-tools.ts'
import { requestEcho } from './responses-format.ts'

const name = z.string().min(1).max(255)

const FunctionCall = z.object({
  type: z.literal('function_call'),
  call_id: name,
  name,
  arguments: z.string().max(262_144),
})
const CallOutput = z.object({
  type: z.literal('function_call_output'),
  call_id: name,
  output: z.union([
    z.string().max(262_144),
    z.array(z.union([TextContentPart, z.object({ type: z.string() })])).max(64),
  ]),
})
const CustomCall = z.object({
  type: z.literal('custom_tool_call'),
  call_id: name,
  name,
  input: z.string().max(262_144),
})
const CustomOutput = CallOutput.extend({ type: z.literal('custom_tool_call_output') })
const Reference = z.object({ type: z.literal('item_reference'), id: z.string().max(512) })
const Reasoning = z.object({
  type: z.literal('reasoning'),
  content: z
    .array(z.object({ type: z.string(), text: ReasoningText.optional() }))
    .max(64)
    .nullish(),
})
const Message = z.union([
  z.object({ type: z.literal('message').optional(), role: z.enum(['system', 'developer']), content: TextContent }),
  z.object({ type: z.literal('message').optional(), role: z.literal('user'), content: UserContent }),
  z.object({ type: z.literal('message').optional(), role: z.literal('assistant'), content: TextContent }),
])
const KNOWN_ITEMS = new Set([
  ...['message', 'function_call', 'function_call_output', 'custom_tool_call', 'custom_tool_call_output'],
  ...['item_reference', 'reasoning'],
])
/** An item that only its vendor reads, such as a call of a hosted tool: it is ignored. */
const OtherItem = z
  .object({ type: z.string().refine(type => !KNOWN_ITEMS.has(type), 'must have the fields of its type') })
  .transform(({ type }) => ({ type: 'other' as const, name: type }))
const Item = z.union([FunctionCall, CallOutput, CustomCall, CustomOutput, Reference, Reasoning, Message, OtherItem])
export type Item = z.output<typeof Item>

const Tool = z.union([
  z.object({
    type: z.literal('function'),
    name: ToolName,
    description: z.string().max(4096).nullish(),
    parameters: ToolSchema.nullish(),
    strict: z.boolean().nullish(),
  }),
  HostedToolField,
  OtherTool,
])
type Tool = z.output<typeof Tool>
const isFunction = (tool: Tool): tool is Extract<Tool, { name: string }> => tool.type === 'function'

/** Part of a response that is returned only on request. */
const LOGPROBS = 'message.output_text.logprobs'

const Format = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text') }),
  z.object({ type: z.literal('json_object') }),
  z.object({
    type: z.literal('json_schema'),
    schema: z.record(z.string(), z.unknown()),
    name: z.string().max(255).nullish(),
    description: z.string().max(4096).nullish(),
    strict: z.boolean().nullish(),
  }),
])

const Allowed = z.object({
  type: z.literal('allowed_tools'),
  mode: z.enum(['auto', 'required']),
  tools: z.array(z.union([z.object({ type: z.literal('function'), name }), OtherKind])).max(128),
})

const ResponseRequest = z.object({
  model: z.string().min(1).max(512),
  input: z.union([z.string().min(1).max(262_144), z.array(Item).min(1).max(500)]),
  instructions: z.string().max(262_144).nullish(),
  tools: z.array(Tool).max(128).nullish(),
  tool_choice: z
    .union([z.enum(['none', 'auto', 'required']), z.object({ type: z.literal('function'), name }), Allowed, OtherKind])
    .nullish(),
  text: z.object({ format: Format.nullish(), verbosity: z.string().max(64).nullish() }).nullish(),
  reasoning: z.object({ effort: z.string().max(64).nullish() }).nullish(),
  max_output_tokens: z.int().min(1).max(2_147_483_647).nullish(),
  stream: z.boolean().nullish(),
  store: z.boolean().nullish(),
  include: z.array(z.string().max(64)).max(32).nullish(),
  background: z.boolean().nullish(),
  previous_response_id: z.string().max(512).nullish(),
  conversation: z.union([z.string().max(255), z.object({ id: z.string().max(255) })]).nullish(),
  ...settingFields,
  ...userFields,
})

/** A request for a response, before its references are resolved. */
export type ParsedResponse = {
  items: readonly Item[]
  /** The request without its messages. */
  request: Omit<ClientChatRequest, 'messages' | 'instructions'>
  instructions: string | null
  previous_response_id: string | null
  conversation: string | null
  store: boolean
  background: boolean
  ignored: string[]
  echo: ReturnType<typeof requestEcho>
}

const allowedBy = ({ mode, tools }: z.output<typeof Allowed>): AllowedTools => ({
  type: 'allowed_tools',
  mode,
  tool_names: tools.flatMap(tool => ('name' in tool ? tool.name : [])),
})

/** @throws VALIDATION_FAILED */
export function parseResponseRequest(body: unknown): ParsedResponse {
  const parsed = parse(ResponseRequest, body ?? {})
  const functions = (parsed.tools ?? []).filter(isFunction)
  const tools = functions.map(toolOf)
  const { hosted, ignored } = hostedToolsOf(parsed.tools ?? [])
  const hasFunctions = tools.length > 0 || hosted.length === 0
  const { tool_choice: choice, text, reasoning, conversation } = parsed
  const format: OutputFormat =
    text?.format?.type === 'json_schema'
      ? { type: 'json_schema', schema: text.format.schema }
      : (text?.format ?? { type: 'text' })
  if (parsed.previous_response_id && conversation)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'conversation',
      message: 'cannot be combined with previous_response_id',
    })
  const isChoice = typeof choice === 'object' && choice !== null
  return {
    items: typeof parsed.input === 'string' ? [{ role: 'user' as const, content: parsed.input }] : parsed.input,
    request: {
      model: parsed.model,
      tools,
      hosted,
      // Hosted tools are named by themselves, and are not chosen by name.
      tool_fields: hasFunctions ? [...(parsed.tools ? ['tools'] : []), ...(choice ? ['tool_choice'] : [])] : [],
      tool_choice: checkedChoice(
        tools,
        isChoice && 'name' in choice ? choice.name : null,
        typeof choice === 'string' && hasFunctions ? choice : null,
        isChoice && 'mode' in choice ? allowedBy(choice) : null,
      ),
      settings: {
        ...settingsOf(parsed, settingFields),
        ...(parsed.include?.includes(LOGPROBS) && { logprobs: true }),
        ...(text?.verbosity && { verbosity: text.verbosity }),
        ...(reasoning?.effort && { reasoning_effort: reasoning.effort }),
      },
      max_output_tokens: parsed.max_output_tokens ?? null,
      format,
      stream: parsed.stream ?? false,
      store: parsed.store ?? null,
      user: userOf(parsed),
      session_key: sessionKeyOf(parsed),
    },
    instructions: parsed.instructions || null,
    previous_response_id: parsed.previous_response_id ?? null,
    conversation: (typeof conversation === 'string' ? conversation : conversation?.id) || null,
    store: parsed.store ?? true,
    background: parsed.background ?? false,
    ignored: [
      ...unknownFields(body, ResponseRequest.shape),
      ...(parsed.include?.some(part => part !== LOGPROBS) ? ['include'] : []),
      ...((parsed.tools ?? []).some(tool => !isFunction(tool) && !isHosted(tool.type)) ? ['tools'] : []),
      ...ignoredStrictness(functions),
      ...ignored,
      ...(choice && (tools.length === 0 || (isChoice && !('name' in choice || 'mode' in choice)))
        ? ['tool_choice']
        : []),
      ...ignoredItems(parsed.input),
    ],
    echo: requestEcho(parsed),
  }
}

/** Returns the names of items, and of parts of results, that are ignored. */
const ignoredItems = (input: string | readonly Item[]): string[] =>
  (typeof input === 'string' ? [] : input).flatMap(item => {
    if ('role' in item) return []
    if ('output' in item)
      return typeof item.output === 'string'
        ? []
        : item.output.flatMap(part => ('text' in part ? [] : `output.${part.type}`))
    if (item.type === 'reasoning') return reasoningOf(item) === '' ? 'input.reasoning' : []
    return item.type === 'other' ? `input.${item.name}` : []
  })

/** Returns the text of reasoning; summaries, and what only its vendor can decrypt, are none. */
const reasoningOf = ({ content }: z.output<typeof Reasoning>): string =>
  (content ?? []).flatMap(({ type, text }) => (type === 'reasoning_text' && text ? text : [])).join('\n\n')

/** Returns the stored text or call that a reference names. */
export type ResolvedItem =
  | { type: 'text'; text: string }
  | { type: 'call'; id: string; name: string; arguments: string }

/**
 * Returns the messages of items, and their system texts.
 * @param references the stored items by ID
 * @throws VALIDATION_FAILED
 */
export function messagesOfItems(
  items: readonly Item[],
  references: ReadonlyMap<string, ResolvedItem>,
  before: Parameters<HistoryBuilder['addAll']>[0],
) {
  const system: string[] = []
  const history = new HistoryBuilder({ messages: 'input', callId: 'call_id' })
  history.addAll(before)
  // Consecutive texts and calls of the assistant are one message.
  let text: string[] = []
  let calls: { id: string; name: string; arguments: string }[] = []
  let reasoning: string[] = []
  const flush = () => {
    if (text.length > 0 || calls.length > 0) history.addAssistant(text.join('\n\n'), calls, reasoning.join('\n\n'))
    text = []
    calls = []
    reasoning = []
  }
  for (const [index, item] of items.entries()) {
    const path = `input[${index}]`
    if ('role' in item) {
      if (item.role === 'assistant') {
        if (calls.length > 0) flush()
        text.push(textOf(item.content))
        continue
      }
      flush()
      if (item.role === 'user') history.addUser(userContentOf(item.content, `${path}.content`))
      else system.push(textOf(item.content))
    } else if (item.type === 'reasoning') {
      if (text.length > 0 || calls.length > 0) flush()
      const thought = reasoningOf(item)
      if (thought !== '') reasoning.push(thought)
    } else if (item.type === 'function_call') {
      calls.push({ id: item.call_id, name: item.name, arguments: item.arguments })
    } else if (item.type === 'custom_tool_call') {
      calls.push({ id: item.call_id, name: item.name, arguments: argumentsOfInput(item.input) })
    } else if (item.type === 'item_reference') {
      const found = references.get(item.id)
      if (found?.type === 'text') {
        if (calls.length > 0) flush()
        text.push(found.text)
      } else if (found) calls.push(found)
    } else if ('output' in item) {
      flush()
      const { output } = item
      const texts = typeof output === 'string' ? output : output.filter(part => 'text' in part)
      history.addResult(item.call_id, textOf(texts), path)
    }
  }
  flush()
  return { instructions: joinTexts(system), messages: history.finish() }
}
