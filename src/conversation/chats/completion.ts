import { type Context, type OperationResult, result } from '#core/api/operation.ts'
import { type Problem, raise, raiseInvalid, recordedFailure } from '#core/base/errors.ts'
import { isObject, parseExactJson } from '#core/base/exact-json.ts'
import { newId } from '#core/base/ids.ts'
import { storableText, storableValue } from '#core/base/storable-text.ts'
import { checkMessagesSize, requireNewestText } from '#execution/generations/request/generate-request.ts'
import type { UnresolvedMessage } from '#execution/generations/request/message-documents.ts'
import { ignoredParamsHeader, ignoredSettings } from '#execution/providers/ignored-params.ts'
import type { ModelRequest } from '#execution/providers/model-messages.ts'
import { authorizeCompletion, prepareCompletion, streamCompletion } from './complete.ts'
import {
  type CompletionBody,
  type CompletionHeader,
  completionFrames,
  completionOf,
  type WireMessage,
} from './openai-format.ts'
import { modelOf } from './run-completion.ts'
import { findCompletionTarget } from './target.ts'

type CompletionContext = Context<Record<string, never>, CompletionBody>

/**
 * Makes a completion and responds with it as a whole or as a stream. Errors before the model call precede the stream.
 */
export async function createCompletion(context: CompletionContext): Promise<OperationResult> {
  const { body, services } = context
  const messages = convertMessages(body)
  checkMessagesSize(messages)
  const { target, chat } = await findCompletionTarget(services, context.caller, body)
  authorizeCompletion(context, { target, chat })
  const schema = body.response_format?.type === 'json_schema' ? body.response_format.json_schema.schema : null
  if (schema && body.stream) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  const prepared = await prepareCompletion(context, target, {
    messages,
    schema,
    request: {
      system: (body.instructions ?? chat?.instructions) || null,
      ...toolsOf(body),
      output_schema: schema,
      prompt_caching: false,
      temperature: body.temperature ?? null,
      top_p: body.top_p ?? null,
      seed: body.seed ?? null,
      stop: typeof body.stop === 'string' ? [body.stop] : (body.stop ?? null),
      max_output_tokens: body.max_completion_tokens ?? body.max_tokens ?? null,
    },
  })
  const head = newCompletionHeader()
  if (body.stream) {
    const format = completionFrames(head, modelOf(target), { usage: body.stream_options?.include_usage ?? false })
    const frames = { ...format, failed: (error: unknown) => format.failed(recordedFailure(error)) }
    return streamCompletion(context, target, head.id, frames, prepared)
  }
  // Continues after a disconnect, because the call is billed.
  const answer = await prepared.complete(new AbortController().signal)
  const done = result(200, completionOf(head, answer), ignoredParamsHeader(services, ignoredSettings([answer])))
  // Content that must not be stored is not stored for a repeat either.
  return prepared.content_mode === 'none'
    ? { ...done, kept: result(200, completionOf(head, { ...answer, text: '', tool_calls: [] })) }
    : done
}

/** Returns the id and time of a new completion. */
export const newCompletionHeader = (): CompletionHeader => ({
  id: newId('chatcmpl'),
  created: Math.floor(Date.now() / 1000),
})

/** Returns the tools of a model request. @throws VALIDATION_FAILED for duplicates or a choice of a missing tool */
function toolsOf({ tools = [], tool_choice }: CompletionBody): Pick<ModelRequest, 'tools' | 'tool_choice'> {
  const names = new Set(tools.map(tool => tool.function.name))
  if (names.size < tools.length)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tools', message: 'must have unique names' })
  const choice = typeof tool_choice === 'object' ? tool_choice : null
  const forced = choice?.type === 'function' ? choice.function.name : null
  const allowed = choice?.type === 'allowed_tools' ? choice.allowed_tools : null
  const tool_names = (allowed?.tools ?? []).map(tool => tool.function.name)
  const missing = tool_names.findIndex(name => !names.has(name))
  if (missing >= 0)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: `tool_choice.allowed_tools.tools[${missing}].function.name`,
      message: 'is not one of the tools',
    })
  if (forced !== null && !names.has(forced))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tool_choice.function.name', message: 'is not one of the tools' })
  if (tool_choice === 'required' && tools.length === 0)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tool_choice', message: 'requires tools' })
  return {
    tools: tools.map(({ function: { name, description = '', parameters, strict } }) => ({
      name,
      description,
      parameters: parameters ?? { type: 'object', properties: {} },
      ...(strict && { strict }),
    })),
    tool_choice:
      forced !== null
        ? { type: 'tool', tool_name: forced }
        : allowed
          ? { type: 'allowed_tools', tool_names, mode: allowed.mode }
          : tools.length > 0 && typeof tool_choice === 'string'
            ? tool_choice
            : null,
  }
}

/**
 * Converts the messages of a request for the model.
 * @throws SYSTEM_MESSAGE_NOT_ALLOWED before all other checks, VALIDATION_FAILED
 */
function convertMessages({ messages }: Pick<CompletionBody, 'messages'>): UnresolvedMessage[] {
  if (messages.some(({ role }) => role === 'system' || role === 'developer')) raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  const problems: Problem[] = []
  const called = new Map<string, string>()
  const converted = messages.map((message, index) => convertMessage(message, `messages[${index}]`, called, problems))
  if (problems.length > 0) raiseInvalid(problems)
  requireResults(messages)
  requireNewestText(converted)
  return converted
}

/** Checks that results follow their calls immediately: providers refuse other orders in different ways. */
function requireResults(messages: readonly WireMessage[]): void {
  let open = new Set<string>()
  const invalid = (path: string, message: string) => raiseInvalid({ code: 'INVALID_VALUE', path, message })
  for (const [index, message] of messages.entries()) {
    if (message.role === 'tool') {
      if (!open.delete(message.tool_call_id))
        invalid(`messages[${index}].tool_call_id`, 'is not a pending call of the preceding assistant message')
      continue
    }
    if (open.size > 0) invalid(`messages[${index}]`, `must be the result of tool call ${[...open][0]}`)
    const ids = message.role === 'assistant' ? (message.tool_calls ?? []).map(call => call.id) : []
    open = new Set(ids)
    if (open.size < ids.length) invalid(`messages[${index}].tool_calls`, 'must have unique ids')
  }
  if (open.size > 0) invalid('messages', `must end with the result of tool call ${[...open][0]}`)
}

/** @param called names of the tools called by earlier messages, by call id */
function convertMessage(
  message: WireMessage,
  path: string,
  called: Map<string, string>,
  problems: Problem[],
): UnresolvedMessage {
  const addProblem = (at: string, text: string) =>
    problems.push({ code: 'INVALID_VALUE', path: `${path}${at}`, message: text })
  if (message.role === 'tool') {
    const { tool_call_id, content } = message
    const tool_name = called.get(tool_call_id)
    if (tool_name === undefined) addProblem('.tool_call_id', 'is not a call of an earlier assistant message')
    const result = {
      type: 'tool_result' as const,
      tool_call_id,
      tool_name: tool_name ?? '',
      result: content,
      error: null,
    }
    return { role: 'tool', content: [result] }
  }
  if (message.role === 'system' || message.role === 'developer') return raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  const { role, content, document_id } = message
  const calls = message.role === 'assistant' ? (message.tool_calls ?? []) : []
  if (content != null && document_id !== undefined) addProblem('.document_id', 'cannot be combined with content')
  if (content == null && document_id === undefined && calls.length === 0)
    addProblem('.content', 'is required unless document_id is set')
  if (document_id !== undefined) {
    if (calls.length > 0) addProblem('.tool_calls', 'cannot be combined with document_id')
    return { role, content: { type: 'document', document_id } }
  }
  if (calls.length === 0) return { role, content: content ?? '' } as UnresolvedMessage
  const parts = calls.map(({ id, function: { name, arguments: text } }) => {
    called.set(id, name)
    return {
      type: 'tool_call' as const,
      tool_call_id: id,
      tool_name: name,
      args: parseClientArguments(text),
    }
  })
  const textParts = content ? [{ type: 'text' as const, text: content as string }] : []
  return { role: 'assistant', content: [...textParts, ...parts] }
}

/** Returns the arguments of a call; as the text that the model gave if they are no JSON object. */
export function parseClientArguments(text: string): unknown {
  try {
    const value = storableValue(parseExactJson(text === '' ? '{}' : text))
    if (isObject(value)) return value
  } catch {}
  return storableText(text)
}
