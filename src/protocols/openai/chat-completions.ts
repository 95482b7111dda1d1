import { newCompletionHeader } from '../../conversation/chats/completion.ts'
import { type ChatHeader, chatChunks, chatCompletion, fingerprintOf } from './chat-format.ts'
import { parseChatRequest } from './chat-request.ts'
import type { ClientChatRequest } from './client-request.ts'
import { answerOf, completionOperation, type StreamFormat } from './completion.ts'
import { modelNotFound, parseModelId } from './models.ts'
import { errorFrame, sendJson, sendStream, setIgnored, setReport, visibilityFor } from './response.ts'
import { suffixOf } from './responses-format.ts'
import { type AgentModel, runAgent, turnAnswerOf } from './run-agent.ts'
import { invokeOperation, isEndUser, type OpenAiSession } from './session.ts'
import type { AgentTurnCall } from './turn-call.ts'

/** Fields of the request that are not part of the messages. */
type Options = { include_usage: boolean; ignored: string[] }

/** Handles POST /chat/completions. */
export async function createChatCompletion(session: OpenAiSession): Promise<void> {
  const { request, ...options } = parseChatRequest(await session.exchange.readJson())
  const model = parseModelId(request.model)
  if (model.kind === 'agent' || model.kind === 'agent_name') return completeByAgent(session, model, request, options)
  // End users use agents only.
  if (isEndUser(session)) throw modelNotFound(request.model)
  const visible = visibilityFor(session)
  const head: ChatHeader = { ...newCompletionHeader(), system_fingerprint: null }
  const stream: StreamFormat | null = request.stream
    ? (firstModel, state) => chatChunks(head, firstModel, visible, streamOptions(session, options, state))
    : null
  const answer = await invokeOperation(session, completionOperation, { body: { model, request, stream } })
  setIgnored(session, options.ignored)
  if (answer.stream) return sendStream(session, answer)
  sendJson(session, chatCompletion(head, answerOf(answer), visible))
}

/** Returns the options of a stream, whose failure before its first bytes is the status of the response. */
const streamOptions = (session: OpenAiSession, { include_usage }: Options, state: { started: boolean }) => ({
  include_usage,
  failed: (error: unknown) => (state.started ? errorFrame(session, error) : null),
})

async function completeByAgent(
  session: OpenAiSession,
  model: AgentModel,
  request: ClientChatRequest,
  options: Options,
): Promise<void> {
  const visible = visibilityFor(session)
  const head = (generationId: string): ChatHeader => ({
    id: `chatcmpl_${suffixOf(generationId)}`,
    created: Math.floor(Date.now() / 1000),
    system_fingerprint: null,
  })
  const stream: AgentTurnCall['stream'] = request.stream
    ? (id, state) => chatChunks(head(id), request.model, visible, streamOptions(session, options, state))
    : null
  const { answer, report } = await runAgent(session, model, request, stream)
  setReport(session, report, options.ignored)
  if (answer.stream) return sendStream(session, answer)
  const turn = turnAnswerOf(answer)
  const system_fingerprint = fingerprintOf(turn.agent_version, visible)
  sendJson(session, chatCompletion({ ...head(turn.generation_id), system_fingerprint }, turn, visible))
}
