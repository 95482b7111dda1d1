import { callAs, identifyOnce } from '#core/api/call.ts'
import type { Operation, OperationResult } from '#core/api/operation.ts'
import type { Services } from '#core/base/services.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import type { Caller } from '#core/iam/caller.ts'
import { invoke } from '#core/invoke/invoke.ts'

/** Action of turns in sessions. */
export const SEND_ACTION = 'sessions:SendSessionMessage'

/** Context of one request to the mount. */
export type OpenAiSession = {
  services: Services
  exchange: MountExchange
  caller: Caller
  /** Project of the credential, or the project that an unbound credential names in a header. */
  project: string | null
}

/** Whether the caller is an end user, who sees no usage, reasoning and details of failures. */
export const isEndUser = ({ caller }: Pick<OpenAiSession, 'caller'>): boolean => caller.end_user !== undefined

type Input = {
  params?: Record<string, string>
  query?: Record<string, unknown>
  body?: Record<string, unknown>
}

/** Invokes an operation with the permissions of the request. @throws errors of the operation */
export function invokeOperation(session: OpenAiSession, operation: Operation, input: Input): Promise<OperationResult> {
  const { services, exchange, caller, project } = session
  const call = callAs(caller, 'openai', input)
  return invoke(services, operation, {
    ...call,
    query: { ...call.query, ...(caller.project_id === null && project !== null && { project_id: project }) },
    path: exchange.req.path,
    request: exchange.request,
    upload: operation.receive ? exchange.req : undefined,
    // Identified again during long responses.
    identify: identifyOnce(caller, exchange.identify),
  })
}
