import type { AppError } from '../core/api/errors.ts'
import type { MountExchange } from '../core/http/mounts.ts'
import type { Caller } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'
import { TASKS } from './versions.ts'
import type { View } from './view.ts'

type Json = Record<string, unknown>

export type McpMessage = { method: string; id: string | number; params?: Json }

/** One request, for those who answer it. */
export type McpClientSession = {
  services: Services
  exchange: MountExchange
  caller: Caller
  view: View
  /** Of revision 2026-07-28: it stands by itself, and a client that leaves cancels it. */
  modern: boolean
  /** What the client declared with the request; nothing before 2026. */
  capabilities: Json
  /** An event stream may be sent. */
  streams: boolean
  /** Answered over HTTP in place of a result. */
  refused: AppError | null
}

/** What a handler may do while it answers. */
export type PendingAnswer = {
  id: string | number
  params: Record<string, unknown>
  /** Aborted when the client leaves. */
  signal: AbortSignal
  /** Answers of users that come with the request, by key. */
  inputResponses: Record<string, unknown>
  /** Sends a notification in the stream of the answer. */
  notify(method: string, params: Record<string, unknown>): void
}

const counted = new WeakSet<object>()

/** Whether a request has made a call before: it counts once against quotas, by its first one. */
export function isCounted({ request }: Pick<McpClientSession['exchange'], 'request'>): boolean {
  const known = counted.has(request)
  counted.add(request)
  return known
}

const CAPABILITIES = 'io.modelcontextprotocol/clientCapabilities'

export const capabilitiesIn = (params: Json | undefined): Json =>
  ((params?._meta as Json | undefined)?.[CAPABILITIES] as Json | undefined) ?? {}

export const takesTasks = ({ capabilities }: Pick<McpClientSession, 'capabilities'>): boolean =>
  (capabilities.extensions as Json | undefined)?.[TASKS] !== undefined

/** Whether forms may be shown to the user of the client. An empty capability is that of forms. */
export function takesForms({ capabilities: { elicitation } }: Pick<McpClientSession, 'capabilities'>): boolean {
  if (typeof elicitation !== 'object' || elicitation === null) return false
  return 'form' in elicitation || Object.keys(elicitation).length === 0
}

/** An error of the protocol: the request asks for what there is not. */
export class RpcError extends Error {
  readonly code: number
  readonly data?: unknown
  constructor(code: number, message: string, data?: unknown) {
    super(message)
    this.code = code
    this.data = data
  }
}

export const INVALID_PARAMS = -32602
export const MISSING_CAPABILITY = -32021

/** Raises -32602. */
export function invalidParams(message: string): never {
  throw new RpcError(INVALID_PARAMS, message)
}

/** Has a request answered over HTTP with an error of the platform, in place of a result. */
export function refuseOverHttp(session: McpClientSession, error: AppError): never {
  session.refused = error
  throw error
}
