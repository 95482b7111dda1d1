import { type Call, callAs } from '#core/api/call.ts'
import { flatten, unflatten } from '#core/api/flatten.ts'
import type { KindRow } from '#core/api/kind.ts'
import { type Operation, type OperationResult, operations } from '#core/api/operation.ts'
import { executeInvocation, invoke } from '#core/invoke/invoke.ts'
import { openPlaced } from '#core/invoke/place.ts'
import type { McpClientSession } from './session.ts'

type RequestContext = Pick<McpClientSession, 'services' | 'caller'> & {
  exchange: Pick<McpClientSession['exchange'], 'request' | 'identify'>
}

/** Invokes an operation on behalf of a request, with its permissions. @throws the errors of the operation */
export const invokeInSession = (
  context: RequestContext,
  operation: string | Operation,
  args: Record<string, unknown>,
  options: { signal?: AbortSignal; idempotencyKey?: string } = {},
): Promise<OperationResult> => {
  const of = typeof operation === 'string' ? operations.get(operation) : operation
  return invoke(context.services, of, buildCall(context, of, args, options))
}

/** Invokes a read operation and returns the record and its row. @throws the errors of the operation */
export async function readItem(
  context: RequestContext,
  operation: string,
  args: Record<string, unknown>,
): Promise<{ record: Record<string, unknown>; row: KindRow }> {
  const of = operations.get(operation)
  const inv = await openPlaced(context.services, of, buildCall(context, of, args, {}))
  const { body } = await executeInvocation(inv)
  return { record: body as Record<string, unknown>, row: inv.resource as KindRow }
}

function buildCall(
  { caller, exchange }: RequestContext,
  operation: Operation,
  args: Record<string, unknown>,
  { signal, idempotencyKey }: { signal?: AbortSignal; idempotencyKey?: string },
): Call {
  const { request, identify } = exchange
  const callArgs = flatten(operation)?.fields.has('wait') ? args : withoutWait(args)
  const call = callAs(caller, 'mcp', { ...unflatten(operation, callArgs), signal, idempotencyKey })
  return {
    ...call,
    identify: async () => (await identify()) ?? null,
    request: { ...request, headers: {}, closed: call.request.closed },
  }
}

const withoutWait = ({ wait: _wait, ...args }: Record<string, unknown>): Record<string, unknown> => args
