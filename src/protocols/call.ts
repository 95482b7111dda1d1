import type { IncomingMessage } from 'node:http'
import { type CallSurface, type ClientInput, callAs, identifyOnce } from '#core/api/call.ts'
import { type Operation, type OperationResult, operations } from '#core/api/operation.ts'
import type { Services } from '#core/base/services.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import type { Caller } from '#core/iam/caller.ts'
import { invoke } from '#core/invoke/invoke.ts'

/** A request to a mount by an identified caller. */
export type MountRequest = { services: Services; exchange: MountExchange; caller: Caller }

export type CallInput = {
  params?: Record<string, string>
  query?: Record<string, unknown>
  body?: Record<string, unknown>
  client?: ClientInput
  idempotencyKey?: string
  /** A body that the operation reads as a stream. */
  upload?: IncomingMessage
}

/** The surface of a mount. */
export type MountSurface = Exclude<CallSurface, 'rest'>

/** Calls an operation on behalf of a request, with its permissions. @throws the errors of the operation */
export function callOperation(
  { services, exchange, caller }: MountRequest,
  surface: MountSurface,
  operation: Operation | string,
  { upload, ...input }: CallInput,
): Promise<OperationResult> {
  return invoke(services, typeof operation === 'string' ? operations.get(operation) : operation, {
    ...callAs(caller, surface, input),
    upload,
    // The request has identified its caller; later checks of a stream find what has changed since.
    identify: identifyOnce(caller, exchange.identify),
    request: { ...exchange.request, headers: {}, closed: exchange.request.closed },
  })
}
