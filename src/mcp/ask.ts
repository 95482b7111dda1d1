import { flatten, unflatten } from '../core/api/flatten.ts'
import type { KindRow } from '../core/api/kind.ts'
import { type Operation, type OperationResult, operations } from '../core/api/operation.ts'
import { type Call, callAs } from '../core/invoke/call.ts'
import { openInvocation } from '../core/invoke/invocation.ts'
import { executeInvocation, invoke } from '../core/invoke/invoke.ts'
import { isCounted, type McpClientSession } from './session.ts'

type Asking = Pick<McpClientSession, 'services' | 'caller'> & {
  exchange: Pick<McpClientSession['exchange'], 'request' | 'identify'>
}

/** Asks an operation on behalf of a request, with its rights. Raises what the operation raises. */
export const elicitApproval = (
  asking: Asking,
  operation: string | Operation,
  args: Record<string, unknown>,
  more: { signal?: AbortSignal; idempotencyKey?: string } = {},
): Promise<OperationResult> => {
  const of = typeof operation === 'string' ? operations.get(operation) : operation
  return invoke(asking.services, of, callFor(asking, of, args, more))
}

/** What an operation answers that reads an item, with the row that it is made of. Raises what the operation raises. */
export async function readItem(
  asking: Asking,
  operation: string,
  args: Record<string, unknown>,
): Promise<{ record: Record<string, unknown>; row: KindRow }> {
  const of = operations.get(operation)
  const inv = openInvocation(asking.services, of, callFor(asking, of, args, {}))
  const { body } = await executeInvocation(inv)
  return { record: body as Record<string, unknown>, row: inv.resource as KindRow }
}

function callFor(
  { caller, exchange }: Asking,
  operation: Operation,
  args: Record<string, unknown>,
  { signal, idempotencyKey }: { signal?: AbortSignal; idempotencyKey?: string },
): Call {
  const { request, identify } = exchange
  const given = flatten(operation)?.fields.has('wait') ? args : withoutWait(args)
  const call = callAs(caller, 'mcp', { ...unflatten(operation, given), signal, idempotencyKey })
  return {
    ...call,
    isCounted: isCounted(exchange),
    identify: async () => (await identify()) ?? null,
    request: { ...request, headers: {}, closed: call.request.closed },
  }
}

const withoutWait = ({ wait: _wait, ...args }: Record<string, unknown>): Record<string, unknown> => args
