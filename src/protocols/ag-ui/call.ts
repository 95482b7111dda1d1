import { type Operation, type OperationResult, operations } from '../../core/api/operation.ts'
import type { MountExchange } from '../../core/http/mounts.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { type ClientInput, callAs, identifyOnce } from '../../core/invoke/call.ts'
import { invoke } from '../../core/invoke/invoke.ts'
import type { Services } from '../../core/process/services.ts'
import type { RunInput } from './input.ts'
import type { Thread } from './store.ts'

/** A request to the mount by an identified caller. */
export type AgUiRequest = { services: Services; exchange: MountExchange; caller: Caller }

/** A run: the thread's session, and what the client sent. */
export type Run = {
  request: AgUiRequest
  agentId: string
  sessionId: string
  thread: Thread
  input: RunInput
  /** Whether the turn counts by a message of the run. */
  counted?: boolean
}

type Input = {
  params?: Record<string, string>
  query?: Record<string, unknown>
  body?: Record<string, unknown>
  client?: ClientInput
}

/** Calls an operation on behalf of a request, with its permissions. @throws the errors of the operation */
export function callOperation(
  { services, exchange, caller }: AgUiRequest,
  id: string,
  input: Input,
): Promise<OperationResult> {
  const operation: Operation = operations.get(id)
  const call = callAs(caller, 'ag_ui', input)
  return invoke(services, operation, {
    ...call,
    // The request has identified its caller; later checks of a stream find what has changed since.
    identify: identifyOnce(caller, exchange.identify),
    request: { ...exchange.request, headers: {}, closed: exchange.request.closed },
  })
}
