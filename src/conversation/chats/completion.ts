import { checkSpend } from '../../control/quotas/spend.ts'
import { AppError, problemsText, raise, raiseInvalid, recordedFailure } from '../../core/api/errors.ts'
import { eventStream } from '../../core/api/event-stream.ts'
import { newId } from '../../core/api/ids.ts'
import { type Context, type OperationResult, result } from '../../core/api/operation.ts'
import type { Services } from '../../core/process/services.ts'
import { outputProblems } from '../../execution/agents/schema.ts'
import { parseStructuredOutput, stripCodeFence } from '../../execution/generations/loop/structured-output.ts'
import { checkSize, MAX_MESSAGES_BYTES } from '../../execution/generations/request/generate-request.ts'
import { type OpenMessage, withDocuments } from '../../execution/generations/request/message-documents.ts'
import { admitFiles, attachFiles, readFiles } from '../../execution/generations/request/message-files.ts'
import type { ModelAnswer, ModelMessage, ModelRequest } from '../../execution/providers/model-messages.ts'
import { requireUnpaused } from '../../identity/projects/pause.ts'
import { openMessages } from './messages.ts'
import { chatKind } from './model.ts'
import { type CompletionBody, completionFrames, completionOf } from './openai-format.ts'
import { type CompletionTarget, modelOf, runCompletion } from './run-completion.ts'
import { findTarget, requireCallableChat } from './target.ts'

export const COMPLETE_ACTION = 'chats:CreateChatCompletion'

/** How long a stream waits for news of its own. */
const QUIET_MS = 60_000

type Completing = Context<Record<string, never>, CompletionBody>

/** One completion, whole or as a stream; whatever refuses it does so before a stream begins. */
export async function createCompletion(context: Completing): Promise<OperationResult> {
  const { body, services, request } = context
  const sent = openMessages(body)
  checkSize(sent)
  const { target, chat } = await findTarget(services.pool, context.caller, body)
  const { project_id } = target
  Object.assign(context.audit, { project_id, resource_public_id: chat?.id ?? null })
  context.allow(COMPLETE_ACTION, chat ? { kind: chatKind, row: chat } : { kind: chatKind, project_id })
  const schema = body.response_format?.type === 'json_schema' ? body.response_format.json_schema.schema : null
  if (schema && body.stream) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  // Compiles it: an answer that cannot be checked would be paid for in vain.
  if (schema) await outputProblems(services, project_id, schema, null, request.closed)
  const messages = await messagesOf(context, project_id, sent)
  await requireCallableChat(services, target)
  const { trace_content_mode } = await requireUnpaused(services.pool, project_id)
  await checkSpend(services, { project_id, agent_id: null, actor_id: null })
  const asked: Omit<ModelRequest, 'signal' | 'messages'> = {
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
  const ask = (signal: AbortSignal, onDelta?: (text: string) => void) =>
    withFiles(services, project_id, messages, signal, read =>
      runCompletion(services, target, { ...asked, messages: read, signal, ...(onDelta && { onDelta }) }),
    )
  const head = { id: newId('chatcmpl'), created: Math.floor(Date.now() / 1000) }
  if (body.stream) return streamCompletion(context, target, head, onDelta => ask(request.closed, onDelta))
  // It goes on without its caller, as it is paid for.
  const signal = new AbortController().signal
  const given = await ask(signal)
  if (schema && given.tool_calls.length === 0) {
    await requireObject(services, project_id, given, schema, signal)
    given.text = stripCodeFence(given.text)
  }
  const done = result(200, completionOf(head, given))
  // Content that is not to be stored is not kept for a repeat either.
  return trace_content_mode === 'none'
    ? { ...done, kept: result(200, completionOf(head, { ...given, text: '', tool_calls: [] })) }
    : done
}

/** The messages with the texts of their documents. Raises what refuses the documents and files that they name. */
async function messagesOf(
  context: Completing,
  projectId: string,
  sent: readonly OpenMessage[],
): Promise<ModelMessage[]> {
  const { services, allow } = context
  const read = await withDocuments(services.pool, allow, projectId, sent, MAX_MESSAGES_BYTES)
  checkSize(read)
  await admitFiles(services.pool, context, projectId, read)
  return read
}

async function withFiles<T>(
  services: Services,
  projectId: string,
  messages: ModelMessage[],
  signal: AbortSignal,
  work: (messages: ModelRequest['messages']) => Promise<T>,
): Promise<T> {
  const files = await readFiles(services, projectId, messages, signal)
  try {
    return await work(attachFiles(messages, files))
  } finally {
    files.release()
  }
}

/** Tools as a model is told of them. Raises VALIDATION_FAILED for a choice without them. */
function toolsOf({ tools = [], tool_choice }: CompletionBody): Pick<ModelRequest, 'tools' | 'tool_choice'> {
  const names = new Set(tools.map(tool => tool.function.name))
  if (names.size < tools.length)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tools', message: 'must not name a tool twice' })
  const forced = typeof tool_choice === 'object' ? tool_choice.function.name : null
  if (forced !== null && !names.has(forced))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tool_choice.function.name', message: 'names none of the tools' })
  if (tool_choice === 'required' && tools.length === 0)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tool_choice', message: 'needs tools' })
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

/** Raises OUTPUT_SCHEMA_VALIDATION_FAILED for an answer that is not what was asked for. */
async function requireObject(
  services: Services,
  projectId: string,
  { text, finish_reason }: ModelAnswer,
  schema: object,
  signal: AbortSignal,
): Promise<void> {
  const read = await parseStructuredOutput(services, projectId, { text, schema, signal })
  if (!read.ok)
    raise('OUTPUT_SCHEMA_VALIDATION_FAILED', {
      message: `The answer of the model is not what was asked for: ${problemsText(read.problems)}`,
      meta: { problems: read.problems, finish_reason },
    })
}

/** The stream of a completion. The provider is left when the client leaves. */
function streamCompletion(
  context: Completing,
  target: CompletionTarget,
  head: { id: string; created: number },
  ask: (onDelta: (text: string) => void) => Promise<ModelAnswer>,
): OperationResult {
  const { services, body } = context
  let model = modelOf(target)
  const frames = completionFrames(head, () => model)
  const ready: string[] = []
  let tell = () => {}
  let ended = false
  const end = (...last: string[]) => {
    ready.push(...last)
    ended = true
    tell()
  }
  ask(text => {
    ready.push(frames.text(text))
    tell()
  }).then(
    given => {
      model = given.model
      end(...frames.end(given, body.stream_options?.include_usage ?? false))
    },
    error => {
      if (!(error instanceof AppError) && !context.request.closed.aborted)
        services.log.error({ err: error, project_id: target.project_id }, 'chat completion')
      end(frames.failed(recordedFailure(error)))
    },
  )
  return eventStream(context, {
    watch(news) {
      tell = news
      return () => {
        tell = () => {}
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
