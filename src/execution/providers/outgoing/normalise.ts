import type { JsonObject } from '#core/api/flatten.ts'
import { isObject } from '#core/base/exact-json.ts'
import type {
  ModelAnswer,
  ModelRequest,
  PromptMessage,
  TextPart,
  ToolCallPart,
  VendorNote,
  VendorPart,
  VendorStep,
} from '../model-messages.ts'
import { shapeMessages } from './messages.ts'
import { hashText, NameMap, similarName } from './names.ts'
import type { OutgoingProfile } from './profile.ts'
import { type SentSchema, sentSchema, UnsendableSchemaError } from './tool-schemas.ts'
import { withUniqueCalls } from './unique-calls.ts'

export type Outgoing = {
  request: ModelRequest
  notes: VendorNote[]
  /** Returns calls of the answer with the names of the tools and arguments that the request had. */
  restore: (calls: ModelAnswer['tool_calls']) => ModelAnswer['tool_calls']
}

/**
 * Returns a request as a vendor accepts it, whatever its history and tools are. Equal requests give equal results, and
 * an earlier part of a history gives the same whatever follows, so that vendors find it in their caches. Parts that
 * another model requires back are left out.
 */
export function normaliseRequest(request: ModelRequest, profile: OutgoingProfile, target: Target): Outgoing {
  const ids = new NameMap(profile.callIds, (id, attempt) => hashText(`${id} ${attempt}`, profile.callIdLength))
  const names = new NameMap(profile.toolNames, similarName).reserve(request.tools.map(({ name }) => name))
  const notes: VendorNote[] = []
  const schemas = new Map<string, SentSchema>()
  const tools = request.tools.flatMap(({ name, parameters, ...tool }) => {
    try {
      const sent = sentSchema(parameters as JsonObject, profile)
      schemas.set(name, sent)
      return [{ ...tool, name: names.outgoing(name), parameters: sent.schema }]
    } catch (error) {
      if (!(error instanceof UnsendableSchemaError)) throw error
      notes.push({ kind: 'tool_left_out', tool_name: name, message: error.message })
      return []
    }
  })
  for (const [name, sent] of names.changed())
    notes.push({ kind: 'tool_renamed', tool_name: name, message: `sent as ${sent}` })
  if (!profile.callsNeedReasoning && request.messages.some(hasClientReasoning))
    notes.push({ kind: 'setting_left_out', setting: 'reasoning_content', message: 'the vendor does not require it' })
  const messages = shapeMessages(withUniqueCalls(request.messages), profile)
    .map(message => renamed(message, ids, names))
    .map(message => forTarget(message, target))
    .map(message => (profile.callsNeedReasoning ? withReasoning(message, target) : message))
  return {
    request: { ...request, messages, tools, tool_choice: choiceOf(request, tools, names) },
    notes,
    restore: calls =>
      calls.map(call => {
        const tool_name = names.original(call.tool_name)
        const schema = call.args_error === undefined ? schemas.get(tool_name) : undefined
        return { ...call, tool_name, args: schema ? schema.restore(call.args) : call.args }
      }),
  }
}

/** Returns a choice among the tools that are sent. */
function choiceOf(
  { tool_choice }: ModelRequest,
  tools: ModelRequest['tools'],
  names: NameMap,
): ModelRequest['tool_choice'] {
  if (tools.length === 0) return null
  if (typeof tool_choice !== 'object' || tool_choice === null) return tool_choice
  if (tool_choice.type === 'allowed_tools') {
    const tool_names = tool_choice.tool_names.map(name => names.outgoing(name))
    const known = tool_names.filter(each => tools.some(({ name }) => name === each))
    return known.length > 0 ? { ...tool_choice, tool_names: known } : 'none'
  }
  const tool_name = names.outgoing(tool_choice.tool_name)
  return tools.some(({ name }) => name === tool_name) ? { type: 'tool', tool_name } : 'auto'
}

/** The provider and model that a request is for. */
export type Target = Pick<VendorStep, 'ai_provider_id' | 'model'>

function forTarget(message: PromptMessage, { ai_provider_id, model }: Target): PromptMessage {
  if (message.role !== 'assistant' || !message.vendor) return message
  const { vendor, ...rest } = message
  return vendor.ai_provider_id === ai_provider_id && vendor.model === model ? message : rest
}

/** Reasoning of a message without any: a vendor that requires reasoning refuses an empty text. */
const NO_REASONING = ' '

/** Adds the reasoning of a client to a message, and other reasoning to calls that have none. */
function withReasoning(message: PromptMessage, target: Target): PromptMessage {
  if (message.role !== 'assistant') return message
  const parts = message.vendor?.parts ?? partsOf(message.content)
  if (parts.some(({ type }) => type === 'reasoning')) return message
  const isNeeded = hasClientReasoning(message) || parts.some(({ type }) => type === 'tool_call')
  if (!isNeeded) return message
  const text = hasClientReasoning(message) ? (message.reasoning as string) : NO_REASONING
  return { ...message, vendor: { ...target, parts: [{ type: 'reasoning', text }, ...parts] } }
}

const hasClientReasoning = (message: PromptMessage): boolean =>
  message.role === 'assistant' && message.reasoning !== undefined && message.reasoning.trim() !== ''

function partsOf(content: string | readonly (TextPart | ToolCallPart)[]): VendorPart[] {
  if (typeof content === 'string') return [{ type: 'text', text: content }]
  let calls = 0
  return content.map(part =>
    part.type === 'text' ? { type: 'text', text: part.text } : { type: 'tool_call', position: calls++ },
  )
}

function renamed(message: PromptMessage, ids: NameMap, names: NameMap): PromptMessage {
  const { role, content } = message
  if (role === 'user' || typeof content === 'string') return message
  return {
    ...message,
    content: content.map(part =>
      part.type === 'text'
        ? part
        : {
            ...part,
            ...(part.type === 'tool_call' && { args: objectOf(part.args) }),
            tool_call_id: ids.outgoing(part.tool_call_id),
            tool_name: names.outgoing(part.tool_name),
          },
    ),
  } as PromptMessage
}

/** Returns the arguments of a call as an object, which vendors require: those that a model wrote may be another value. */
const objectOf = (args: unknown): object => (isObject(args) ? args : args == null ? {} : { invalid_arguments: args })
