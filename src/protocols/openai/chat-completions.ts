import { newCompletionHeader } from '../../conversation/chats/completion.ts'
import { AppError } from '../../core/api/errors.ts'
import { toRefusal } from '../../core/invoke/refusal-mapping.ts'
import { type ChatHeader, chatChunks, chatCompletion, type Visibility } from './chat-format.ts'
import { parseChatRequest } from './chat-request.ts'
import { answerOf, completionOperation, type StreamFormat } from './completion.ts'
import { openAiError } from './error-body.ts'
import { parseModelId } from './models.ts'
import { invokeOperation, isEndUser, type OpenAiSession, setServiceHeader } from './session.ts'

const MAX_IGNORED = 20

/** Names ignored fields in a header. Names that a header cannot contain are omitted. */
export function setIgnored(session: OpenAiSession, names: readonly string[]): void {
  const shown = names.filter(name => /^[\w.-]{1,64}$/.test(name)).slice(0, MAX_IGNORED)
  if (shown.length > 0) setServiceHeader(session, 'Ignored-Params', shown.join(', '))
}

/** Returns the body of an error in a stream. Errors without a code are internal. */
export function errorFrame(session: OpenAiSession, error: unknown): { error: object } {
  const { config } = session.services
  const refusal = toRefusal(error) ?? new AppError('INTERNAL_ERROR', { cause: error })
  return openAiError(refusal, config.DOCS_BASE_URL, isEndUser(session)).body
}

export const visibilityFor = (session: OpenAiSession): Visibility => {
  const visible = !isEndUser(session)
  return { usage: visible, reasoning: visible }
}

/** Handles POST /chat/completions. */
export async function createChatCompletion(session: OpenAiSession): Promise<void> {
  const { request, include_usage, ignored } = parseChatRequest(await session.exchange.readJson())
  const model = parseModelId(request.model)
  const visible = visibilityFor(session)
  const head: ChatHeader = { ...newCompletionHeader(), system_fingerprint: null }
  const stream: StreamFormat | null = request.stream
    ? (firstModel, state) =>
        chatChunks(head, firstModel, visible, {
          include_usage,
          failed: error => (state.started ? errorFrame(session, error) : null),
        })
    : null
  if (model.kind === 'agent' || model.kind === 'agent_name') throw new Error('agents are not served yet')
  const answer = await invokeOperation(session, completionOperation, { body: { model, request, stream } })
  setIgnored(session, ignored)
  if (answer.stream) return sendStream(session, answer)
  session.exchange.end(200, JSON.stringify(chatCompletion(head, answerOf(answer), visible)))
}

/** Sends a stream with its headers. */
export function sendStream(
  { exchange }: OpenAiSession,
  { headers, stream }: { headers?: Record<string, string>; stream?: import('node:stream').Readable },
): void {
  for (const [name, value] of Object.entries(headers ?? {})) exchange.res.setHeader(name, value)
  if (stream) exchange.stream(200, 'text/event-stream; charset=utf-8', stream)
}
