import { raiseNotAccepted } from '#content/files/media.ts'
import type { OperationResult } from '#core/api/operation.ts'
import { agentTurnOperation, sessionTurnOperation } from './agent-turn.ts'
import { spokenTexts } from './align.ts'
import { hasRemoteImages } from './client-media.ts'
import type { ClientChatRequest } from './client-request.ts'
import { conversationKeyOf, endUserOf } from './identity.ts'
import { findAgentByName, type ModelRef } from './models.ts'
import { invokeOperation, isEndUser, type OpenAiSession } from './session.ts'
import type { TurnAnswer } from './turn-answer.ts'
import type { AgentTurnCall, PreviousResponse, TurnReport } from './turn-call.ts'
import { requestIdentity } from './turn-requests.ts'

export type AgentModel = Extract<ModelRef, { kind: 'agent' | 'agent_name' }>

/** Runs an agent for a request, by the operation for its end user and its conversation. @throws errors of the turn */
export async function runAgent(
  session: OpenAiSession,
  model: AgentModel,
  sent: ClientChatRequest,
  stream: AgentTurnCall['stream'],
  options: { key?: string | null; previous?: PreviousResponse | null; store?: boolean; background?: boolean } = {},
): Promise<{ answer: OperationResult; report: TurnReport }> {
  const request = isEndUser(session) ? withoutReasoning(sent) : sent
  const agent_id = model.kind === 'agent' ? model.id : await findAgentByName(session, model.name)
  const end_user = endUserOf(session, request)
  const { store = true, background = false, previous = null } = options
  const key = conversationKeyOf(session, request, options.key)
  const retries = Number(session.exchange.req.headers['x-stainless-retry-count'] ?? 0)
  const report: TurnReport = { session_id: null, ignored: [] }
  if (isEndUser(session)) refuseRemoteImages(request)
  const call: AgentTurnCall = {
    agent_id,
    message: isEndUser(session) ? longestText(request, previous?.message_count ?? 0) : '',
    request,
    isEndUser: isEndUser(session),
    end_user,
    key,
    appends: options.key != null,
    previous,
    identity: requestIdentity(session.caller, agent_id, end_user, key, request),
    isRetry: retries >= 1,
    stream,
    store,
    background,
    report,
  }
  const isSession = end_user !== null || key !== null || hasSession(previous, agent_id)
  const answer = isSession
    ? await invokeOperation(session, sessionTurnOperation, { body: call })
    : await invokeOperation(session, agentTurnOperation, { params: { agent_id }, body: call })
  if (request !== sent) report.ignored.push('reasoning_content')
  return { answer, report }
}

/** Returns a request without reasoning: end users see none, so that theirs is not of the model. The same request without any. */
function withoutReasoning(request: ClientChatRequest): ClientChatRequest {
  let isFound = false
  const messages = request.messages.map(message => {
    if (message.role !== 'assistant' || message.reasoning === undefined) return message
    isFound = true
    const { reasoning: _, ...rest } = message
    return rest
  })
  return isFound ? { ...request, messages } : request
}

/** Returns the text of the user after the last message of the assistant. */
const textAdded = ({ messages }: ClientChatRequest): string =>
  spokenTexts(messages.slice(messages.findLastIndex(({ role }) => role === 'assistant') + 1))
    .map(({ text }) => text)
    .join('\n')

/**
 * Returns the longest text of a request that limits count: what the user adds, each of its earlier texts, each result of a tool,
 * the system text, each tool and the schema. Texts of the assistant are not counted, because the agent may have written them.
 * @param known messages of the previous response, whose results are not of the client
 */
function longestText(request: ClientChatRequest, known: number): string {
  const { messages, instructions, tools, format } = request
  const earlier = messages.filter(({ role }) => role === 'user').flatMap(message => spokenTexts([message]))
  const results = messages.slice(known).flatMap(({ role, content }) => (role === 'tool' ? content : []))
  const texts = [
    textAdded(request),
    ...earlier.map(({ text }) => text),
    ...results.map(({ result }) => (typeof result === 'string' ? result : JSON.stringify(result))),
    instructions ?? '',
    ...tools.map(tool => JSON.stringify(tool)),
    ...(format.type === 'json_schema' ? [JSON.stringify(format.schema)] : []),
  ]
  return texts.reduce((longest, text) => (text.length > longest.length ? text : longest))
}

/** Whether a request continues a session without an end user. */
const hasSession = (previous: PreviousResponse | null, agentId: string): boolean =>
  previous !== null && previous.generation.session_id !== null && previous.generation.agent_id === agentId

/** Refuses URLs of images in a request of an end user. @throws MEDIA_NOT_ACCEPTED */
function refuseRemoteImages({ messages }: ClientChatRequest): void {
  if (hasRemoteImages(messages))
    raiseNotAccepted(null, { reason: 'url', message: 'End users send images as data URLs or files, not as URLs' })
}

/** Returns the answer of a turn that was not streamed. */
export const turnAnswerOf = ({ body }: OperationResult): TurnAnswer => body as TurnAnswer
