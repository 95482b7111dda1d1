import { Readable } from 'node:stream'
import type { ReadableStream } from 'node:stream/web'
import { classifyInboundRequest, PerRequestHTTPServerTransport, ProtocolErrorCode } from '@modelcontextprotocol/server'
import { AppError, errorBody, raise } from '../core/api/errors.ts'
import type { Exchange } from '../core/http/mounts.ts'
import type { Services } from '../core/process/services.ts'
import { admit, countBound, requireOrigin } from './access.ts'
import { requireHeaders } from './headers.ts'
import { serverFor } from './server.ts'
import { capabilitiesIn, type Session } from './session.ts'
import { MODERN, OLD } from './versions.ts'
import { viewOf } from './view.ts'

type Message = { method: string; id: string | number; params?: Record<string, unknown> }

/** One HTTP request of /mcp. */
export async function serve(services: Services, exchange: Exchange): Promise<void> {
  const { config } = services
  const { req } = exchange
  if (!config.MCP_ENABLED) raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })
  requireOrigin(config, req.headers.origin)
  const caller = await admit(services, exchange)
  if (req.method !== 'POST')
    throw new AppError('REQUEST_REJECTED', {
      status: 405,
      message: `${req.method} is not supported`,
      headers: { Allow: 'POST' },
    })
  const body = await readMessage(exchange)
  await countBound(services, caller)
  const view = viewOf(req.query)
  const inbound = classifyInboundRequest({
    httpMethod: 'POST',
    protocolVersionHeader: header(exchange, 'mcp-protocol-version'),
    mcpMethodHeader: header(exchange, 'mcp-method'),
    mcpNameHeader: header(exchange, 'mcp-name'),
    body,
  })
  if (inbound.kind === 'reject') {
    if (inbound.rung === 'jsonrpc-shape') malformed(inbound.code, inbound.message)
    return refuse(services, exchange, inbound, body)
  }
  if (inbound.kind === 'legacy') {
    if (inbound.reason === 'batch') malformed(ProtocolErrorCode.InvalidRequest, 'A batch of messages is not supported')
    requireOldVersion(header(exchange, 'mcp-protocol-version'))
    if (inbound.reason === 'notification' || inbound.reason === 'response') return exchange.end(202, null)
  } else {
    const { revision } = inbound.classification
    if (revision !== MODERN)
      return refuse(
        services,
        exchange,
        {
          httpStatus: 400,
          code: ProtocolErrorCode.UnsupportedProtocolVersion,
          message: 'Unsupported protocol version',
          data: { supported: [MODERN], requested: revision },
        },
        body,
      )
    if (inbound.messageKind === 'notification') return exchange.end(202, null)
    const mismatch = requireHeaders(body as Message, {
      version: header(exchange, 'mcp-protocol-version'),
      method: header(exchange, 'mcp-method'),
      name: header(exchange, 'mcp-name'),
    })
    if (mismatch) return refuse(services, exchange, { httpStatus: 400, ...mismatch }, body)
  }
  const message = body as Message
  const modern = inbound.kind === 'modern'
  const session: Session = {
    services,
    exchange,
    caller,
    view,
    modern,
    capabilities: modern ? capabilitiesIn(message.params) : {},
    streams: modern || /text\/event-stream/i.test(req.headers.accept ?? ''),
    refused: null,
  }
  await respond(session, message, modern ? inbound.classification : { era: 'legacy' })
}

const header = ({ req }: Exchange, name: string): string | undefined => {
  const value = req.headers[name]
  return typeof value === 'string' ? value : undefined
}

/** Raises VALIDATION_FAILED for a body that is no JSON-RPC message. */
function malformed(code: number, message: string): never {
  return raise('VALIDATION_FAILED', {
    message,
    meta: { problems: [{ code: 'MALFORMED', path: '', message: 'is not one JSON-RPC message' }], jsonrpc_code: code },
  })
}

async function readMessage(exchange: Exchange): Promise<unknown> {
  try {
    return await exchange.readJson()
  } catch (error) {
    if ((error as { type?: string }).type === 'entity.parse.failed')
      return malformed(ProtocolErrorCode.ParseError, `Malformed request body: ${(error as Error).message}`)
    throw error
  }
}

/** Raises VALIDATION_FAILED for a version that no release of the protocol has; a request without one is of the first. */
function requireOldVersion(version: string | undefined): void {
  if (version !== undefined && !OLD.includes(version))
    raise('VALIDATION_FAILED', {
      message: `MCP-Protocol-Version ${version.slice(0, 40)} is not supported`,
      meta: {
        problems: [
          {
            code: 'INVALID_VALUE',
            path: 'MCP-Protocol-Version',
            message: `must be one of ${[MODERN, ...OLD].join(', ')}`,
          },
        ],
      },
    })
}

type Refusal = { httpStatus: number; code: number; message: string; data?: unknown }

/** Answers an error of the protocol, with its HTTP status and the error of the platform beside it. */
function refuse({ config }: Services, exchange: Exchange, refusal: Refusal, body: unknown): void {
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

/** Has the protocol server answer a request, and sends that. */
async function respond(
  session: Session,
  message: Message,
  classification: ConstructorParameters<typeof PerRequestHTTPServerTransport>[0]['classification'],
): Promise<void> {
  const { services, exchange, modern } = session
  const { closed } = exchange.request
  const transport = new PerRequestHTTPServerTransport({
    classification,
    responseMode: session.streams ? 'auto' : 'json',
  })
  await serverFor(session, message.method).connect(transport)
  const leave = () => void transport.close()
  closed.addEventListener('abort', leave, { once: true })
  try {
    const response = await transport.handleMessage({ jsonrpc: '2.0', ...message } as never)
    if (session.refused) throw session.refused
    const type = response.headers.get('content-type') ?? ''
    if (type.startsWith('text/event-stream')) {
      for (const [name, value] of response.headers) if (name !== 'content-type') exchange.res.setHeader(name, value)
      return exchange.stream(200, 'text/event-stream', Readable.fromWeb(response.body as ReadableStream))
    }
    const text = await response.text()
    if (response.status === 200) return exchange.end(200, text)
    const { error } = JSON.parse(text) as { error: Omit<Refusal, 'httpStatus'> }
    // Before 2026 errors of the protocol had no status of their own.
    if (modern) return refuse(services, exchange, { httpStatus: response.status, ...error }, message)
    exchange.end(200, text)
  } catch (error) {
    if (!closed.aborted) throw error
    exchange.end(499, null)
  } finally {
    closed.removeEventListener('abort', leave)
  }
}
