import { AppError, errorBody } from '#core/base/errors.ts'
import { release } from '#core/base/release.ts'
import type { Services } from '#core/base/services.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import { SseWriter } from './events.ts'
import type { McpMethodHandler } from './methods.ts'
import { type McpClientSession, type McpMessage, MISSING_CAPABILITY, RpcError } from './session.ts'

/**
 * Responses to requests for tools, resources and tasks. The SDK server could send them, but it is built for each
 * request and validates each message: 0.8 ms for a call that takes 1 ms over REST.
 */

export type Refusal = { httpStatus: number; code: number; message: string; data?: unknown }

/** Sends a protocol error with its HTTP status and the corresponding platform error. */
export function refuseMessage({ config }: Services, exchange: MountExchange, refusal: Refusal, body: unknown): void {
  const { httpStatus: status, code, message, data } = refusal
  const error = { code, message, data: withPlatformError(config.DOCS_BASE_URL, status, message, data) }
  exchange.end(status, JSON.stringify({ jsonrpc: '2.0', id: idOf(body), error }))
}

/** Returns the ID of a request; null if it has none. */
export function idOf(body: unknown): string | number | null {
  const id = (body as { id?: unknown } | null | undefined)?.id
  return typeof id === 'string' || typeof id === 'number' ? id : null
}

function withPlatformError(docsBaseUrl: string, status: number, message: string, data: unknown): object {
  const platformError =
    status === 404
      ? new AppError('RESOURCE_NOT_FOUND', { message })
      : new AppError('VALIDATION_FAILED', {
          message,
          meta: { problems: [{ code: 'INVALID_VALUE', path: '', message }] },
        })
  return { ...(data as object | undefined), platform: errorBody(platformError, docsBaseUrl).error }
}

/** Runs a handler and sends its result, as JSON or as the end of the stream that it opened. */
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
    // The handler has responded with its own stream.
    if (result === null) return
    if (closed.aborted) return exchange.end(499, null)
    const response = answer({ result: modern ? toModernResult(services, result) : result })
    if (events) (events as SseWriter).end(response)
    else exchange.end(200, JSON.stringify(response))
  } catch (error) {
    if (closed.aborted) return exchange.end(499, null)
    if (session.refused && !events) throw session.refused
    const rpcError = error instanceof RpcError ? error : unexpectedError(session, error)
    const { code, message: text, data } = rpcError
    if (events) return (events as SseWriter).end(answer({ error: { code, message: text, data } }))
    if (code === MISSING_CAPABILITY)
      return refuseMessage(services, exchange, { httpStatus: 400, code, message: text, data }, message)
    exchange.end(200, JSON.stringify(answer({ error: { code, message: text, data } })))
  }
}

/** Returns a result in the format of 2026-07-28. */
const toModernResult = ({ config }: Services, result: object): object => ({
  resultType: 'complete',
  ...result,
  _meta: { 'io.modelcontextprotocol/serverInfo': { name: config.MCP_SERVER_NAME, version: release } },
})

/**
 * Logs an unexpected error and returns the error to send, without the cause.
 * @throws the error if the platform refuses the request: the response is then an HTTP error
 */
function unexpectedError({ services, exchange }: McpClientSession, error: unknown): RpcError {
  if (error instanceof AppError && error.code !== 'INTERNAL_ERROR') throw error
  services.log.error({ err: error, request_id: exchange.request.id }, 'mcp request failed')
  return new RpcError(-32603, 'Internal Server Error')
}
