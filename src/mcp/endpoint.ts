import { classifyInboundRequest, PerRequestHTTPServerTransport, ProtocolErrorCode } from '@modelcontextprotocol/server'
import { z } from 'zod'
import { AppError, raise } from '../core/api/errors.ts'
import type { MountExchange } from '../core/http/mounts.ts'
import type { Services } from '../core/process/services.ts'
import { admitRequest, countBound, requireOrigin } from './access.ts'
import { requireHeaders } from './headers.ts'
import { handlersOf } from './methods.ts'
import { type Refusal, refuseMessage, sendResponse } from './reply.ts'
import { serverOf } from './server.ts'
import { capabilitiesIn, type McpMessage } from './session.ts'
import { MODERN, OLD } from './versions.ts'
import { viewOf } from './view.ts'

/** One HTTP request of /mcp. */
export async function serveMcp(services: Services, exchange: MountExchange): Promise<void> {
  const { config } = services
  const { req } = exchange
  if (!config.MCP_ENABLED) raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })
  requireOrigin(config, req.headers.origin)
  const caller = await admitRequest(services, exchange)
  if (req.method !== 'POST')
    throw new AppError('REQUEST_REJECTED', {
      status: 405,
      message: `${req.method} is not supported`,
      headers: { Allow: 'POST' },
    })
  const body = await readMessage(exchange)
  await countBound(services, caller)
  const view = viewOf(req.query)
  const inbound = inboundOf(exchange, body)
  if (inbound.kind === 'refused') return refuseMessage(services, exchange, inbound.refusal, body)
  if (inbound.kind === 'notification') return exchange.end(202, null)
  const { message, modern } = inbound
  const handler = handlersOf(modern).get(message.method)
  if (!handler) return handshake(services, exchange, message, modern)
  const session = {
    services,
    exchange,
    caller,
    view,
    modern,
    capabilities: modern ? capabilitiesIn(message.params) : {},
    streams: modern || /text\/event-stream/i.test(req.headers.accept ?? ''),
    refused: null,
  }
  await sendResponse(session, message, handler)
}

async function readMessage(exchange: MountExchange): Promise<unknown> {
  try {
    return await exchange.readJson()
  } catch (error) {
    if ((error as { type?: string }).type === 'entity.parse.failed')
      return malformed(ProtocolErrorCode.ParseError, `Malformed request body: ${(error as Error).message}`)
    throw error
  }
}

/** Raises VALIDATION_FAILED for a body that is no JSON-RPC message. */
function malformed(code: number, message: string): never {
  return raise('VALIDATION_FAILED', {
    message,
    meta: { problems: [{ code: 'MALFORMED', path: '', message: 'is not one JSON-RPC message' }], jsonrpc_code: code },
  })
}

type Inbound =
  | { kind: 'refused'; refusal: Refusal }
  | { kind: 'notification' }
  | { kind: 'request'; message: McpMessage; modern: boolean }

const request = (body: unknown, modern: boolean): Inbound => ({ kind: 'request', message: body as McpMessage, modern })

/** What a body is, by the rules of the revision that it is of. Raises VALIDATION_FAILED. */
function inboundOf({ req }: MountExchange, body: unknown): Inbound {
  const header = (name: string) => req.headers[name] as string | undefined
  const given = {
    version: header('mcp-protocol-version'),
    method: header('mcp-method'),
    name: header('mcp-name'),
  }
  const headersOf = (message: McpMessage): Inbound => {
    const mismatch = requireHeaders(message, given)
    return mismatch ? { kind: 'refused', refusal: { httpStatus: 400, ...mismatch } } : request(message, true)
  }
  if (given.version === MODERN && isPlain(body)) return headersOf(body)
  const found = classifyInboundRequest({
    httpMethod: 'POST',
    protocolVersionHeader: given.version,
    mcpMethodHeader: given.method,
    mcpNameHeader: given.name,
    body,
  })
  if (found.kind === 'reject')
    return found.rung === 'jsonrpc-shape' ? malformed(found.code, found.message) : { kind: 'refused', refusal: found }
  if (found.kind === 'legacy') {
    if (found.reason === 'batch') malformed(ProtocolErrorCode.InvalidRequest, 'A batch of messages is not supported')
    requireOldVersion(given.version)
    return found.reason === 'notification' || found.reason === 'response'
      ? { kind: 'notification' }
      : request(body, false)
  }
  const { revision } = found.classification
  if (revision !== MODERN)
    return {
      kind: 'refused',
      refusal: {
        httpStatus: 400,
        code: ProtocolErrorCode.UnsupportedProtocolVersion,
        message: 'Unsupported protocol version',
        data: { supported: [MODERN], requested: revision },
      },
    }
  return found.messageKind === 'notification' ? { kind: 'notification' } : headersOf(body as McpMessage)
}

const Plain = z.object({
  jsonrpc: z.literal('2.0'),
  id: z.union([z.string(), z.int()]),
  method: z.string(),
  params: z.object({
    _meta: z.object({
      'io.modelcontextprotocol/protocolVersion': z.literal(MODERN),
      'io.modelcontextprotocol/clientCapabilities': z.record(z.string(), z.record(z.string(), z.unknown())),
      'io.modelcontextprotocol/clientInfo': z.object({ name: z.string(), version: z.string() }).optional(),
    }),
  }),
})

/** Whether a body is plainly a request of 2026-07-28: the SDK, which says what is wrong with others, takes 0.3 ms for it. */
const isPlain = (body: unknown): body is McpMessage => Plain.safeParse(body).success

/** Raises VALIDATION_FAILED for a version that no release of the protocol has; a request without one is of the first. */
function requireOldVersion(version: string | undefined): void {
  if (version === undefined || OLD.includes(version)) return
  const message = `must be one of ${[MODERN, ...OLD].join(', ')}`
  raise('VALIDATION_FAILED', {
    message: `MCP-Protocol-Version ${version.slice(0, 40)} is not supported`,
    meta: { problems: [{ code: 'INVALID_VALUE', path: 'MCP-Protocol-Version', message }] },
  })
}

/** Has the server of the SDK answer what it answers by itself: how clients begin, and methods that there are not. */
async function handshake(
  services: Services,
  exchange: MountExchange,
  message: McpMessage,
  modern: boolean,
): Promise<void> {
  const transport = new PerRequestHTTPServerTransport({
    classification: modern ? { era: 'modern', revision: MODERN } : { era: 'legacy' },
    responseMode: 'json',
  })
  await serverOf(services, modern).connect(transport)
  const response = await transport.handleMessage({ jsonrpc: '2.0', ...message } as never)
  const text = await response.text()
  // Before 2026 errors of the protocol had no status of their own.
  if (response.status === 200 || !modern) return exchange.end(200, text)
  const { error } = JSON.parse(text) as { error: Omit<Refusal, 'httpStatus'> }
  refuseMessage(services, exchange, { httpStatus: response.status, ...error }, message)
}
