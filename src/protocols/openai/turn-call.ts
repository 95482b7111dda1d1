import type { Context } from '#core/api/operation.ts'
import type { GenerationRow } from '#execution/generations/model.ts'
import type { ClientChatRequest } from './client-request.ts'
import type { EndUserRef } from './identity.ts'
import type { TurnChunks } from './turn-format.ts'
import type { RequestIdentity } from './turn-requests.ts'

/** What a turn did besides its answer. */
export type TurnReport = { session_id: string | null; ignored: string[] }

/** The response that a request continues. */
export type PreviousResponse = {
  generation: GenerationRow
  /** Messages of the request that are the input and the steps of this generation. */
  message_count: number
}

/** A request for a turn of an agent. */
export type AgentTurnCall = {
  agent_id: string
  /** Text that the user adds, by which limits count it. */
  message: string
  request: ClientChatRequest
  isEndUser: boolean
  end_user: EndUserRef | null
  /** Key of the conversation; null for a single turn. */
  key: string | null
  /** Whether the request contains only additions to the conversation, not its history. */
  appends: boolean
  previous: PreviousResponse | null
  identity: RequestIdentity
  /** Whether the client repeats a request, which then attaches to its turn. */
  isRetry: boolean
  /** Formats a stream; null for the answer as the body of the result. `state.started` is set with the first bytes. */
  stream: ((generationId: string, state: { started: boolean }, afterStep: number) => TurnChunks) | null
  /** Whether the content of the turn is stored. */
  store: boolean
  /** Whether the response does not wait for the turn. */
  background: boolean
  report: TurnReport
}

export const callFields: (keyof AgentTurnCall)[] = [
  ...(['agent_id', 'message', 'request', 'isEndUser', 'end_user', 'key', 'appends', 'previous'] as const),
  ...(['identity', 'isRetry', 'stream', 'store', 'background', 'report'] as const),
]

export type TurnContext = Pick<
  Context<unknown, AgentTurnCall>,
  'services' | 'caller' | 'body' | 'allow' | 'audit' | 'request' | 'recheck' | 'record' | 'client'
>

export type NewTurn = { generation_id: string; project_id: string; actor_id: string | null }
export type TurnIds = { generation_id: string; trace_id: string }
