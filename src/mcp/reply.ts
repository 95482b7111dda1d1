import { AppError, errorBody } from '../core/api/errors.ts'
import type { MountExchange } from '../core/http/mounts.ts'
import { release } from '../core/process/release.ts'
import type { Services } from '../core/process/services.ts'
import { SseWriter } from './events.ts'
import type { McpMethodHandler } from './methods.ts'
import { type McpClientSession, type McpMessage, MISSING_CAPABILITY, RpcError } from './session.ts'

/**
 * How requests for tools, resources and tasks are answered. The server of the SDK would do it too: built for each request and
 * validating each message, it takes 0.8 ms of a call that takes 1 ms over REST.
 */

export type Refusal = { httpStatus: number; code: number; message: string; data?: unknown }

/** Answers an error of the protocol, with its HTTP status and the error of the platform beside it. */
export function refuseMessage({ config }: Services, exchange: MountExchange, refusal: Refusal, body: unknown): void {
  const { httpStatus: status, code, message, data } = refusal
  const id = (body as { id?: unknown } | undefined)?.id
  const error = { code, message, data: withPlatform(config.DOCS_BASE_URL, status, message, data) }
  const known = typeof id === 'string' || typeof id === 'number' ? id : null
  exchange.end(status, JSON.stringify({ jsonrpc: '2.0', id: known, error }))
}

function withPlatform(docsBaseUrl: string, status: number, message: string, data: unknown): object {
  const refused =
    status === 404
      ? new AppError('RESOURCE_NOT_FOUND', { message })
      : new AppError('VALIDATION_FAILED', {
          message,
          meta: { problems: [{ code: 'INVALID_VALUE', path: '', message }] },
        })
  return { ...(data as object | undefined), platform: errorBody(refused, docsBaseUrl).error }
}

/** Has a handler answer a request, and sends that: as JSON, or as the end of the stream that was begun. */
export async function sendResponse(
  session: McpClientSession,
  message: McpMessage,
  handler: McpMethodHandler,
): Promise<void> {
  const { services, exchange, modern } = session
  const { closed } = exchange.request
  let events: SseWriter | null = null
  const { inputResponses, ...params } = message.params ?? {}
  const answer = (part: object) => ({ jsonrpc: '2.0', id: message.id, ...part })
  try {
    const result = await handler(session, {
      params,
      id: message.id,
      signal: closed,
      inputResponses: (inputResponses as Record<string, unknown> | undefined) ?? {},
      notify(method, params) {
        if (!session.streams || closed.aborted) return
        events ??= new SseWriter(exchange)
        events.send({ jsonrpc: '2.0', method, params })
      },
    })
    // The handler has answered by a stream of its own.
    if (result === null) return
    if (closed.aborted) return exchange.end(499, null)
    const sent = answer({ result: modern ? marked(services, result) : result })
    if (events) (events as SseWriter).end(sent)
    else exchange.end(200, JSON.stringify(sent))
  } catch (error) {
    if (closed.aborted) return exchange.end(499, null)
    if (session.refused && !events) throw session.refused
    const known = error instanceof RpcError ? error : unforeseen(session, error)
    const { code, message: text, data } = known
    if (events) return (events as SseWriter).end(answer({ error: { code, message: text, data } }))
    if (code === MISSING_CAPABILITY)
      return refuseMessage(services, exchange, { httpStatus: 400, code, message: text, data }, message)
    exchange.end(200, JSON.stringify(answer({ error: { code, message: text, data } })))
  }
}

/** A result as 2026-07-28 has it. */
const marked = ({ config }: Services, result: object): object => ({
  resultType: 'complete',
  ...result,
  _meta: { 'io.modelcontextprotocol/serverInfo': { name: config.MCP_SERVER_NAME, version: release } },
})

/**
 * The answer to an error that was not foreseen, whose cause only the log has.
 * @throws the error where the platform refuses the request: it is answered over HTTP
 */
function unforeseen({ services, exchange }: McpClientSession, error: unknown): RpcError {
  if (error instanceof AppError && error.code !== 'INTERNAL_ERROR') throw error
  services.log.error({ err: error, request_id: exchange.request.id }, 'mcp request failed')
  return new RpcError(-32603, 'Internal Server Error')
}
