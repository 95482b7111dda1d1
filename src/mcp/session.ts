import type { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import type { Caller } from '#core/iam/caller.ts'
import { TASKS } from './versions.ts'
import type { View } from './view.ts'

type Json = Record<string, unknown>

export type McpMessage = { method: string; id: string | number; params?: Json }

/** Context of one request. */
export type McpClientSession = {
  services: Services
  exchange: MountExchange
  caller: Caller
  view: View
  /** Whether the request is of revision 2026-07-28: stateless, and cancelled when the client disconnects. */
  modern: boolean
  /** Capabilities declared in the request; empty before 2026. */
  capabilities: Json
  /** Whether the response may be an event stream. */
  streams: boolean
  /** Error to send over HTTP in place of a result. */
  refused: AppError | null
}

/** Input and output of a handler. */
export type PendingAnswer = {
  id: string | number
  params: Record<string, unknown>
  /** Aborted when the client disconnects. */
  signal: AbortSignal
  /** User responses sent with the request, by key. */
  inputResponses: Record<string, unknown>
  /** Sends a notification in the stream of the response. */
  notify(method: string, params: Record<string, unknown>): void
}

const CAPABILITIES = 'io.modelcontextprotocol/clientCapabilities'

export const capabilitiesIn = (params: Json | undefined): Json =>
  ((params?._meta as Json | undefined)?.[CAPABILITIES] as Json | undefined) ?? {}

export const acceptsTasks = ({ capabilities }: Pick<McpClientSession, 'capabilities'>): boolean =>
  (capabilities.extensions as Json | undefined)?.[TASKS] !== undefined

/** Whether forms may be shown to the user of the client. An empty capability means forms. */
export function acceptsForms({ capabilities: { elicitation } }: Pick<McpClientSession, 'capabilities'>): boolean {
  if (typeof elicitation !== 'object' || elicitation === null) return false
  return 'form' in elicitation || Object.keys(elicitation).length === 0
}

/** Protocol error. */
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

/** @throws RpcError -32602 */
export function invalidParams(message: string): never {
  throw new RpcError(INVALID_PARAMS, message)
}

/** Responds over HTTP with a platform error in place of a result. */
export function refuseOverHttp(session: McpClientSession, error: AppError): never {
  session.refused = error
  throw error
}
