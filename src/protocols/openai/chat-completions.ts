import { newCompletionHeader } from '#conversation/chats/completion.ts'
import { type ChatHeader, chatChunks, chatCompletion, fingerprintOf } from './chat-format.ts'
import { parseChatRequest } from './chat-request.ts'
import type { ClientChatRequest } from './client-request.ts'
import { answerOf, completionOperation, ignoredBy, type StreamFormat } from './completion.ts'
import { modelNotFound, parseModelId } from './models.ts'
import { errorFrame, sendJson, sendStream, setIgnored, setReport, visibilityFor } from './response.ts'
import { answerId } from './responses-format.ts'
import { type AgentModel, runAgent, turnAnswerOf } from './run-agent.ts'
import { invokeOperation, isEndUser, type OpenAiSession } from './session.ts'
import { parseTextRequest, textChunks, textCompletion } from './text-completions.ts'
import type { AgentTurnCall } from './turn-call.ts'

/** Fields of the request that are not part of the messages. */
type Options = { include_usage: boolean; ignored: string[] }

/** How a route reads requests and writes answers. */
type Format = {
  parse: typeof parseChatRequest
  whole: (...answer: Parameters<typeof chatCompletion>) => object
  chunks: typeof chatChunks
}

/** Handles POST /chat/completions. */
export const createChatCompletion = (session: OpenAiSession): Promise<void> =>
  complete(session, { parse: parseChatRequest, whole: chatCompletion, chunks: chatChunks })

/** Handles POST /completions, the older form: a prompt is a message of the user. */
export const createTextCompletion = (session: OpenAiSession): Promise<void> =>
  complete(session, { parse: parseTextRequest, whole: textCompletion, chunks: textChunks })

async function complete(session: OpenAiSession, format: Format): Promise<void> {
  const { request, ...options } = format.parse(await session.exchange.readJson())
  const model = parseModelId(request.model)
  if (model.kind === 'agent' || model.kind === 'agent_name')
    return completeByAgent(session, format, model, request, options)
  // End users use agents only.
  if (isEndUser(session)) throw modelNotFound(request.model)
  const visible = visibilityFor(session)
  const head: ChatHeader = { ...newCompletionHeader(), system_fingerprint: null }
  const stream: StreamFormat | null = request.stream
    ? (firstModel, state) => format.chunks(head, firstModel, visible, streamOptions(session, options, state))
    : null
  const answer = await invokeOperation(session, completionOperation, { body: { model, request, stream } })
  setIgnored(session, [...options.ignored, ...ignoredBy(answer)])
  if (answer.stream) return sendStream(session, answer)
  sendJson(session, format.whole(head, answerOf(answer), visible))
}

/** Returns the options of a stream, whose failure before its first bytes is the status of the response. */
const streamOptions = (session: OpenAiSession, { include_usage }: Options, state: { started: boolean }) => ({
  include_usage,
  failed: (error: unknown) => (state.started ? errorFrame(session, error) : null),
})

async function completeByAgent(
  session: OpenAiSession,
  format: Format,
  model: AgentModel,
  request: ClientChatRequest,
  options: Options,
): Promise<void> {
  const visible = visibilityFor(session)
  const head = (generationId: string, afterStep: number): ChatHeader => ({
    id: answerId('chatcmpl', generationId, afterStep),
    created: Math.floor(Date.now() / 1000),
    system_fingerprint: null,
  })
  const stream: AgentTurnCall['stream'] = request.stream
    ? (id, state, afterStep) =>
        format.chunks(head(id, afterStep), request.model, visible, streamOptions(session, options, state))
    : null
  const { answer, report } = await runAgent(session, model, request, stream)
  setReport(session, report, [...options.ignored, ...ignoredBy(answer)])
  if (answer.stream) return sendStream(session, answer)
  const turn = turnAnswerOf(answer)
  const system_fingerprint = fingerprintOf(turn.agent_version, visible)
  const { generation_id, afterStep } = turn
  sendJson(session, format.whole({ ...head(generation_id, afterStep), system_fingerprint }, turn, visible))
}
