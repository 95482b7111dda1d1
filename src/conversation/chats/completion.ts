import { checkSpend } from '../../control/quotas/spend.ts'
import { AppError, type Problem, problemsText, raise, raiseInvalid, recordedFailure } from '../../core/api/errors.ts'
import { eventStream } from '../../core/api/event-stream.ts'
import { newId } from '../../core/api/ids.ts'
import { type Context, type OperationResult, result } from '../../core/api/operation.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import type { Services } from '../../core/process/services.ts'
import { outputProblems } from '../../execution/agents/schema.ts'
import { parseStructuredOutput, stripCodeFence } from '../../execution/generations/loop/structured-output.ts'
import { checkMessagesSize, MAX_MESSAGES_BYTES } from '../../execution/generations/request/generate-request.ts'
import { resolveDocuments, type UnresolvedMessage } from '../../execution/generations/request/message-documents.ts'
import { admitFiles, attachFiles, readFiles } from '../../execution/generations/request/message-files.ts'
import { calledModels, handlingOf } from '../../execution/generations/request/message-media.ts'
import type { ModelAnswer, ModelMessage, ModelRequest } from '../../execution/providers/model-messages.ts'
import { requireUnpaused } from '../../identity/projects/pause.ts'
import { chatKind } from './model.ts'
import { type CompletionBody, completionFrames, completionOf, type WireMessage } from './openai-format.ts'
import { type CompletionTarget, modelOf, runCompletion } from './run-completion.ts'
import { findCompletionTarget, requireCallableChat } from './target.ts'

export const COMPLETE_ACTION = 'chats:CreateChatCompletion'

/** Longest wait of a stream without new chunks. */
const QUIET_MS = 60_000

type CompletionContext = Context<Record<string, never>, CompletionBody>

/**
 * Makes a completion and responds with it as a whole or as a stream. Errors before the model call precede the stream.
 */
export async function createCompletion(context: CompletionContext): Promise<OperationResult> {
  const { body, services, request } = context
  const sent = convertMessages(body)
  checkMessagesSize(sent)
  const { target, chat } = await findCompletionTarget(services.pool, context.caller, body)
  const { project_id } = target
  Object.assign(context.audit, { project_id, resource_public_id: chat?.id ?? null })
  context.allow(COMPLETE_ACTION, chat ? { kind: chatKind, row: chat } : { kind: chatKind, project_id })
  const schema = body.response_format?.type === 'json_schema' ? body.response_format.json_schema.schema : null
  if (schema && body.stream) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  // Compiles the schema before the model call, which would be billed for output that cannot be validated.
  if (schema) await outputProblems(services, project_id, schema, null, request.closed)
  const messages = await resolveMessages(context, project_id, sent)
  await requireCallableChat(services, target)
  const { trace_content_mode } = await requireUnpaused(services.pool, project_id)
  await checkSpend(services, { project_id, agent_id: null, actor_id: null })
  const modelRequest: Omit<ModelRequest, 'signal' | 'messages'> = {
    system: (body.instructions ?? chat?.instructions) || null,
    ...toolsOf(body),
    output_schema: schema,
    prompt_caching: false,
    temperature: body.temperature ?? null,
    top_p: body.top_p ?? null,
    seed: body.seed ?? null,
    stop: typeof body.stop === 'string' ? [body.stop] : (body.stop ?? null),
    max_output_tokens: body.max_completion_tokens ?? body.max_tokens ?? null,
  }
  const complete = (signal: AbortSignal, onDelta?: (text: string) => void) =>
    withFiles(services, target, messages, signal, read =>
      runCompletion(services, target, { ...modelRequest, messages: read, signal, ...(onDelta && { onDelta }) }),
    )
  const head = { id: newId('chatcmpl'), created: Math.floor(Date.now() / 1000) }
  if (body.stream) return streamCompletion(context, target, head, onDelta => complete(request.closed, onDelta))
  // Continues after a disconnect, because the call is billed.
  const signal = new AbortController().signal
  const answer = await complete(signal)
  if (schema && answer.tool_calls.length === 0) {
    await requireValidOutput(services, project_id, answer, schema, signal)
    answer.text = stripCodeFence(answer.text)
  }
  const done = result(200, completionOf(head, answer))
  // Content that must not be stored is not stored for a repeat either.
  return trace_content_mode === 'none'
    ? { ...done, kept: result(200, completionOf(head, { ...answer, text: '', tool_calls: [] })) }
    : done
}

/** Returns the messages with the texts of their documents. Raises errors of documents and files. */
async function resolveMessages(
  context: CompletionContext,
  projectId: string,
  sent: readonly UnresolvedMessage[],
): Promise<ModelMessage[]> {
  const { services, allow } = context
  const read = await resolveDocuments(services.pool, allow, projectId, sent, MAX_MESSAGES_BYTES)
  checkMessagesSize(read)
  await admitFiles(services.pool, context, projectId, read)
  return read
}

/** Runs `work` with the files of messages attached. */
export async function withFiles<T>(
  services: Services,
  target: CompletionTarget,
  messages: ModelMessage[],
  signal: AbortSignal,
  work: (messages: ModelRequest['messages']) => Promise<T>,
): Promise<T> {
  const handling = handlingOf(calledModels(target, target.model))
  const files = await readFiles(services, target.project_id, messages, signal, handling)
  try {
    return await work(attachFiles(messages, files))
  } finally {
    files.release()
  }
}

/** Returns the tools of a model request. @throws VALIDATION_FAILED for duplicates or a choice of a missing tool */
function toolsOf({ tools = [], tool_choice }: CompletionBody): Pick<ModelRequest, 'tools' | 'tool_choice'> {
  const names = new Set(tools.map(tool => tool.function.name))
  if (names.size < tools.length)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tools', message: 'must have unique names' })
  const forced = typeof tool_choice === 'object' ? tool_choice.function.name : null
  if (forced !== null && !names.has(forced))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tool_choice.function.name', message: 'is not one of the tools' })
  if (tool_choice === 'required' && tools.length === 0)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tool_choice', message: 'requires tools' })
  return {
    tools: tools.map(({ function: { name, description = '', parameters } }) => ({
      name,
      description,
      parameters: parameters ?? { type: 'object', properties: {} },
    })),
    tool_choice:
      forced !== null
        ? { type: 'tool', tool_name: forced }
        : tools.length > 0 && typeof tool_choice === 'string'
          ? tool_choice
          : null,
  }
}

/** @throws OUTPUT_SCHEMA_VALIDATION_FAILED for an answer that does not satisfy the schema */
async function requireValidOutput(
  services: Services,
  projectId: string,
  { text, finish_reason }: ModelAnswer,
  schema: object,
  signal: AbortSignal,
): Promise<void> {
  const read = await parseStructuredOutput(services, projectId, { text, schema, signal })
  if (!read.ok)
    raise('OUTPUT_SCHEMA_VALIDATION_FAILED', {
      message: `The answer of the model does not satisfy the schema: ${problemsText(read.problems)}`,
      meta: { problems: read.problems, finish_reason },
    })
}

/** Streams a completion. The model call is aborted when the client disconnects. */
function streamCompletion(
  context: CompletionContext,
  target: CompletionTarget,
  head: { id: string; created: number },
  complete: (onDelta: (text: string) => void) => Promise<ModelAnswer>,
): OperationResult {
  const { services, body } = context
  let model = modelOf(target)
  const frames = completionFrames(head, () => model)
  const ready: string[] = []
  let notify = () => {}
  let ended = false
  const end = (...last: string[]) => {
    ready.push(...last)
    ended = true
    notify()
  }
  complete(text => {
    ready.push(frames.text(text))
    notify()
  }).then(
    answer => {
      model = answer.model
      end(...frames.end(answer, body.stream_options?.include_usage ?? false))
    },
    error => {
      if (!(error instanceof AppError) && !context.request.closed.aborted)
        services.log.error({ err: error, project_id: target.project_id }, 'chat completion failed')
      end(frames.failed(recordedFailure(error)))
    },
  )
  return eventStream(context, {
    watch(listener) {
      notify = listener
      return () => {
        notify = () => {}
      }
    },
    position: () => head.id,
    refused: refusal => frames.failed(refusal),
    async *look() {
      for (let next = ready.shift(); next !== undefined; next = ready.shift()) yield next
      return ended ? 'ended' : QUIET_MS
    },
  })
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
  const parts = calls.map(({ id, function: { name, arguments: text } }, at) => {
    called.set(id, name)
    return {
      type: 'tool_call' as const,
      tool_call_id: id,
      tool_name: name,
      args: parseArguments(text, () => addProblem(`.tool_calls[${at}].function.arguments`, 'must be a JSON object')),
    }
  })
  const textParts = content ? [{ type: 'text' as const, text: content as string }] : []
  return { role: 'assistant', content: [...textParts, ...parts] }
}

function parseArguments(text: string, onInvalid: () => void): unknown {
  try {
    const value = storableValue(JSON.parse(text === '' ? '{}' : text))
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value
  } catch {}
  onInvalid()
  return {}
}
