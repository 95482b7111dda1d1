import { checkSpend } from '#control/quotas/spend.ts'
import { eventStream } from '#core/api/event-stream.ts'
import type { Context, OperationResult } from '#core/api/operation.ts'
import { AppError, problemsText, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { outputProblems } from '#execution/agents/schema.ts'
import { parseStructuredOutput, stripCodeFence } from '#execution/generations/loop/structured-output.ts'
import { checkMessagesSize, MAX_MESSAGES_BYTES } from '#execution/generations/request/generate-request.ts'
import { resolveDocuments, type UnresolvedMessage } from '#execution/generations/request/message-documents.ts'
import { admitFiles, attachFiles, readFiles } from '#execution/generations/request/message-files.ts'
import { calledModels, handlingOf } from '#execution/generations/request/message-media.ts'
import type { ModelAnswer, ModelMessage, ModelRequest } from '#execution/providers/model-messages.ts'
import { requireNotPaused } from '#identity/projects/pause.ts'
import { chatKind } from './model.ts'
import { type CompletionTarget, runCompletion } from './run-completion.ts'
import { type FoundTarget, requireCallableChat } from './target.ts'

export const COMPLETE_ACTION = 'chats:CreateChatCompletion'

/** Longest wait of a stream without new chunks. */
const QUIET_MS = 60_000

type CompletionContext = Pick<Context, 'services' | 'request' | 'allow' | 'audit' | 'recheck' | 'record' | 'effectKey'>

/** Requires the permission for a completion of a target and names it in the audit entry. */
export function authorizeCompletion({ audit, allow }: CompletionContext, { target, chat }: FoundTarget): void {
  const { project_id } = target
  Object.assign(audit, { project_id, resource_public_id: chat?.id ?? null })
  allow(COMPLETE_ACTION, chat ? { kind: chatKind, row: chat } : { kind: chatKind, project_id })
}

type CompletionSpec = {
  messages: readonly UnresolvedMessage[]
  request: Omit<ModelRequest, 'signal' | 'messages'>
  /** JSON Schema that the answer must satisfy; null for text. */
  schema: object | null
}

type DeltaHandlers = Pick<ModelRequest, 'onDelta' | 'onReasoning'>

type PreparedCompletion = {
  content_mode: 'full' | 'none'
  /**
   * Makes the model call and checks its answer. The audit entry of a call that is not streamed is written with its
   * usage, unless the answer may still be refused or a response is stored for repeats.
   * @throws errors of the call, OUTPUT_SCHEMA_VALIDATION_FAILED
   */
  complete(signal: AbortSignal, handlers?: DeltaHandlers): Promise<ModelAnswer>
}

/**
 * Checks everything that can refuse a completion before its model call, which would be billed.
 * @throws errors of documents and files, INVALID_OUTPUT_SCHEMA, AI_PROVIDER_NOT_FOUND, AI_PROVIDER_MISCONFIGURED,
 *   PROJECT_PAUSED, errors of quotas
 */
export async function prepareCompletion(
  context: CompletionContext,
  target: CompletionTarget,
  { messages: sent, request, schema }: CompletionSpec,
): Promise<PreparedCompletion> {
  const { services } = context
  const { project_id } = target
  if (schema) await outputProblems(services, project_id, schema, null, context.request.closed)
  const messages = await resolveMessages(context, project_id, sent)
  await requireCallableChat(services, target)
  const { trace_content_mode: content_mode } = requireNotPaused(project_id, target.project)
  await checkSpend(services, { project_id, agent_id: null, actor_id: null })
  return {
    content_mode,
    async complete(signal, handlers) {
      const isSettled = !handlers && !schema && context.effectKey() === null
      const onAnswer = isSettled ? (outbox: Outbox) => context.record(outbox, 200, { body: null }) : undefined
      const answer = await withFiles(services, target, messages, signal, read =>
        runCompletion(services, target, { ...request, messages: read, signal, ...handlers }, onAnswer),
      )
      if (!schema || answer.tool_calls.length > 0) return answer
      await requireValidOutput(services, project_id, answer, schema, signal)
      return { ...answer, text: stripCodeFence(answer.text) }
    },
  }
}

/** Returns the messages with the texts of their documents. Raises errors of documents and files. */
async function resolveMessages(
  context: CompletionContext,
  projectId: string,
  sent: readonly UnresolvedMessage[],
): Promise<ModelMessage[]> {
  const { services, allow } = context
  const read = await resolveDocuments(services.pool, allow, projectId, sent, MAX_MESSAGES_BYTES)
  if (read !== sent) checkMessagesSize(read)
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

/** Formats the messages of a streamed completion. */
export type CompletionFrames = {
  text(delta: string): string
  reasoning?(delta: string): string
  end(answer: ModelAnswer): Iterable<string>
  /**
   * The last message of a stream that failed, or whose caller has lost its permission. Null before the first message:
   * the stream is then destroyed with the error.
   */
  failed(error: unknown): string | null
}

/** Streams a completion. The model call is aborted when the client disconnects. */
export function streamCompletion(
  context: CompletionContext,
  { project_id }: CompletionTarget,
  id: string,
  frames: CompletionFrames,
  { complete }: PreparedCompletion,
): OperationResult {
  const { services, request } = context
  const ready: string[] = []
  let notify = () => {}
  let ended = false
  let failure: { error: unknown } | null = null
  const add = (...messages: string[]) => {
    ready.push(...messages)
    notify()
  }
  const end = (messages: Iterable<string>) => {
    ended = true
    add(...messages)
  }
  complete(request.closed, {
    onDelta: text => add(frames.text(text)),
    ...(frames.reasoning && { onReasoning: text => add(frames.reasoning?.(text) ?? '') }),
  }).then(
    answer => end(frames.end(answer)),
    error => {
      if (!(error instanceof AppError) && !request.closed.aborted)
        services.log.error({ err: error, project_id }, 'chat completion failed')
      const message = frames.failed(error)
      if (message === null) failure = { error }
      end(message === null ? [] : [message])
    },
  )
  return eventStream(context, {
    watch(listener) {
      notify = listener
      return () => {
        notify = () => {}
      }
    },
    position: () => id,
    refused: refusal => frames.failed(refusal) ?? '',
    async *look() {
      if (ready.length > 0) yield ready.splice(0).join('')
      if (failure) throw failure.error
      return ended ? 'ended' : QUIET_MS
    },
  })
}
