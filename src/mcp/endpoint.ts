import {
  classifyInboundRequest,
  PerRequestHTTPServerTransport,
  ProtocolErrorCode,
  Server,
} from '@modelcontextprotocol/server'
import { z } from 'zod'
import { RequestCount } from '#core/api/request-count.ts'
import type { Config } from '#core/base/config.ts'
import { AppError, errorBody, raise } from '#core/base/errors.ts'
import { release } from '#core/base/release.ts'
import type { Services } from '#core/base/services.ts'
import { anonymousBodyError } from '#core/http/body.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import type { Caller } from '#core/iam/caller.ts'
import { insufficientScope, resourceMetadataUrl } from '#core/iam/challenges.ts'
import { isLoopback } from '#core/net/loopback.ts'
import { PROOF_ALGORITHMS } from '#identity/grants/dpop.ts'
import { MCP_ACCESS } from '#identity/grants/scopes.ts'
import { handlersOf } from './methods.ts'
import { idOf, type Refusal, refuseMessage, sendResponse } from './reply.ts'
import { capabilitiesIn, type McpMessage } from './session.ts'
import { FIRST, MODERN, OLD, TASKS } from './versions.ts'
import { viewOf } from './view.ts'

/**
 * Returns the caller of a request.
 * @throws UNAUTHORIZED with the challenge that starts the sign-in of a client, FORBIDDEN for an OAuth token without the
 * scope of this endpoint
 */
async function admitRequest({ config }: Services, exchange: MountExchange): Promise<Caller> {
  const caller = await exchange.identify()
  if (!caller) {
    const error = anonymousBodyError(exchange.req)
    if (error.code !== 'UNAUTHORIZED') throw error
    const challenge = `Bearer resource_metadata="${resourceMetadataUrl(config, '/mcp')}", scope="${MCP_ACCESS}", DPoP algs="${PROOF_ALGORITHMS.join(' ')}"`
    throw new AppError('UNAUTHORIZED', { headers: { 'WWW-Authenticate': challenge } })
  }
  const { type, scopes } = caller.credential
  if (type === 'oauth_token' && !scopes?.includes(MCP_ACCESS))
    throw new AppError('FORBIDDEN', { headers: insufficientScope(config, '/mcp', [...(scopes ?? []), MCP_ACCESS]) })
  return caller
}

const isLoopbackUrl = (url: string): boolean => isLoopback(URL.parse(url) ?? { hostname: '' })

/**
 * Refuses pages of origins that may not use the API: browsers send the origin of a page, even to an address on the
 * user's machine. A deployment on a loopback address accepts loopback origins and listed origins; `*` does not count as
 * listed there.
 * @throws FORBIDDEN
 */
function requireOrigin(
  { CORS_ALLOWED_ORIGINS: allowed, BASE_URL }: Pick<Config, 'CORS_ALLOWED_ORIGINS' | 'BASE_URL'>,
  origin: string | undefined,
): void {
  if (origin === undefined || allowed.includes(origin)) return
  if (allowed.includes('*') && (!isLoopbackUrl(BASE_URL) || isLoopbackUrl(origin))) return
  raise('FORBIDDEN', { message: 'Origin is not allowed', meta: { origin: origin.slice(0, 255) } })
}

/** Headers with which intermediaries route requests of 2026-07-28; they repeat values of the body. */

/** Parameter that Mcp-Name repeats, by method. */
const NAMED_BY: Record<string, string> = {
  'tools/call': 'name',
  'resources/read': 'uri',
  'tasks/get': 'taskId',
  'tasks/update': 'taskId',
  'tasks/cancel': 'taskId',
}

const MISMATCH = -32020
const ENCODED = /^=\?base64\?([A-Za-z0-9+/]*={0,2})\?=$/

type Mismatch = { code: number; message: string; data: { mismatch: { header: string; value: string | null } } }

const toMismatch = (header: string, value: string | undefined, message: string): Mismatch => ({
  code: MISMATCH,
  message: `${header} ${message}`,
  data: { mismatch: { header, value: value ?? null } },
})

/** Returns the first mismatch between the headers and the body of a request; null if they match. */
function findHeaderMismatch(
  { method, params }: Pick<McpMessage, 'method' | 'params'>,
  headers: { version?: string; method?: string; name?: string },
): Mismatch | null {
  if (headers.version === undefined) return toMismatch('MCP-Protocol-Version', undefined, 'is required')
  if (headers.method?.trim() !== method)
    return toMismatch('Mcp-Method', headers.method, `must be ${method}, as in the body`)
  const expectedName = Object.hasOwn(NAMED_BY, method) ? params?.[NAMED_BY[method]] : undefined
  // A body without a name is refused later.
  if (typeof expectedName !== 'string') return null
  if (headers.name === undefined || decodeName(headers.name.trim()) !== expectedName)
    return toMismatch('Mcp-Name', headers.name, `must equal params.${NAMED_BY[method]}`)
  return null
}

function decodeName(value: string): string {
  const found = ENCODED.exec(value)
  return found ? Buffer.from(found[1], 'base64').toString('utf8') : value
}

const INSTRUCTIONS = `Every operation of the platform is a tool. Only a few are listed. To find the others:
1. search-tools with a few words about the task, for example "upload a file".
2. describe-tools with the names, for their arguments.
3. call-tool with a name and its arguments. Every tool can also be called directly by its name.
Lists are paged with limit and offset and can be filtered. Calls wait for long work; \`wait: false\` returns its record immediately. get-docs lists the pages of the manual.`

/** The server sends no requests to clients, so that it validates no responses. */
const validator = {
  getValidator() {
    throw new Error('client schemas are not validated')
  },
}

/** Creates the SDK server for one request: the handshake. */
const serverOf = ({ config }: Services, modern: boolean): Server =>
  new Server(
    { name: config.MCP_SERVER_NAME, version: release },
    {
      capabilities: { tools: {}, resources: {}, ...(modern ? { extensions: { [TASKS]: {} } } : {}) },
      instructions: INSTRUCTIONS,
      supportedProtocolVersions: [MODERN, ...OLD],
      jsonSchemaValidator: validator,
      cacheHints: { 'server/discover': { ttlMs: 300_000, cacheScope: 'public' } },
    },
  )

/** Handles one HTTP request of /mcp. */
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
  if (isBatch(exchange, body)) await serveBatch(services, exchange, caller, body)
  else await serveMessage(services, exchange, caller, body)
}

async function serveMessage(services: Services, exchange: MountExchange, caller: Caller, body: unknown): Promise<void> {
  const { req } = exchange
  const view = viewOf(req.query)
  const inbound = classifyInbound(exchange, body)
  if (inbound.kind === 'refused') return refuseMessage(services, exchange, inbound.refusal, body)
  if (inbound.kind === 'notification') return exchange.end(202, null)
  const { message, modern } = inbound
  const handler = handlersOf(modern).get(message.method)
  if (!handler) return delegateToSdk(services, exchange, message, modern)
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

/** Messages of one batch. */
const MAX_BATCH = 50

/** Whether a body is a batch of messages, which only the first revision has. @throws VALIDATION_FAILED for others */
function isBatch({ req }: MountExchange, body: unknown): body is unknown[] {
  if (!Array.isArray(body)) return false
  const version = req.headers['mcp-protocol-version'] ?? FIRST
  if (version !== FIRST)
    return refuseMalformed(ProtocolErrorCode.InvalidRequest, `Batches of messages are not supported after ${FIRST}`)
  if (body.length === 0 || body.length > MAX_BATCH)
    return refuseMalformed(ProtocolErrorCode.InvalidRequest, `A batch must have 1 to ${MAX_BATCH} messages`)
  return true
}

/** Serves the messages of a batch one after another; each counts as a request. Responds with their responses. */
async function serveBatch(
  services: Services,
  exchange: MountExchange,
  caller: Caller,
  messages: unknown[],
): Promise<void> {
  const responses: string[] = []
  for (const [index, message] of messages.entries()) {
    if (exchange.request.closed.aborted) break
    const member: MountExchange = {
      ...exchange,
      request: index === 0 ? exchange.request : { ...exchange.request, count: new RequestCount(services) },
      end: (_status, text) => void (text && responses.push(text)),
    }
    const { method } = (message ?? {}) as Partial<McpMessage>
    try {
      if (Array.isArray(message) || method === 'initialize')
        refuseMalformed(ProtocolErrorCode.InvalidRequest, 'A batch has neither batches nor initialize')
      await member.request.count?.in(caller, caller.project_id)
      await serveMessage(services, member, caller, message)
    } catch (error) {
      if (!(error instanceof AppError)) throw error
      responses.push(refusedMember(services, message, error))
    }
  }
  if (exchange.request.closed.aborted) exchange.end(499, null)
  else if (responses.length === 0) exchange.end(202, null)
  else exchange.end(200, `[${responses.join()}]`)
}

/** Returns the response to a message of a batch that the platform refuses: outside of one it is an HTTP error. */
function refusedMember({ config }: Services, message: unknown, error: AppError): string {
  const { error: platform } = errorBody(error, config.DOCS_BASE_URL)
  const code = (error.meta as { jsonrpc_code?: number } | undefined)?.jsonrpc_code ?? ProtocolErrorCode.InternalError
  return JSON.stringify({
    jsonrpc: '2.0',
    id: idOf(message),
    error: { code, message: error.message, data: { platform } },
  })
}

async function readMessage(exchange: MountExchange): Promise<unknown> {
  try {
    return await exchange.readJson()
  } catch (error) {
    if ((error as { type?: string }).type === 'entity.parse.failed')
      return refuseMalformed(ProtocolErrorCode.ParseError, `Malformed request body: ${(error as Error).message}`)
    throw error
  }
}

/** Refuses a body that is not a JSON-RPC message. @throws VALIDATION_FAILED */
function refuseMalformed(code: number, message: string): never {
  return raise('VALIDATION_FAILED', {
    message,
    meta: { problems: [{ code: 'MALFORMED', path: '', message: 'must be one JSON-RPC message' }], jsonrpc_code: code },
  })
}

type Inbound =
  | { kind: 'refused'; refusal: Refusal }
  | { kind: 'notification' }
  | { kind: 'request'; message: McpMessage; modern: boolean }

const toInbound = (body: unknown, modern: boolean): Inbound => ({
  kind: 'request',
  message: body as McpMessage,
  modern,
})

/** Classifies a body by the rules of its protocol revision. @throws VALIDATION_FAILED */
function classifyInbound({ req }: MountExchange, body: unknown): Inbound {
  const header = (name: string) => req.headers[name] as string | undefined
  const headerValues = {
    // `initialize` negotiates the version by its body.
    version: isInitialize(body) ? undefined : header('mcp-protocol-version'),
    method: header('mcp-method'),
    name: header('mcp-name'),
  }
  const checkHeaders = (message: McpMessage): Inbound => {
    const toMismatch = findHeaderMismatch(message, headerValues)
    return toMismatch ? { kind: 'refused', refusal: { httpStatus: 400, ...toMismatch } } : toInbound(message, true)
  }
  if (headerValues.version === MODERN && isModernRequest(body)) return checkHeaders(body)
  const found = classifyInboundRequest({
    httpMethod: 'POST',
    protocolVersionHeader: headerValues.version,
    mcpMethodHeader: headerValues.method,
    mcpNameHeader: headerValues.name,
    body,
  })
  if (found.kind === 'reject')
    return found.rung === 'jsonrpc-shape'
      ? refuseMalformed(found.code, found.message)
      : { kind: 'refused', refusal: found }
  if (found.kind === 'legacy') {
    requireOldVersion(headerValues.version)
    return found.reason === 'notification' || found.reason === 'response'
      ? { kind: 'notification' }
      : toInbound(body, false)
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
  return found.messageKind === 'notification' ? { kind: 'notification' } : checkHeaders(body as McpMessage)
}

const ModernRequest = z.object({
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

/**
 * Whether a body is a valid request of 2026-07-28: avoids the SDK, which takes 0.3 ms and is only needed for detailed
 * errors.
 */
const isModernRequest = (body: unknown): body is McpMessage => ModernRequest.safeParse(body).success

/** Requires a released protocol version; a request without a version uses the first one. @throws VALIDATION_FAILED */
function requireOldVersion(version: string | undefined): void {
  if (version === undefined || OLD.includes(version)) return
  const message = `must be one of ${[MODERN, ...OLD].join(', ')}`
  raise('VALIDATION_FAILED', {
    message: `MCP-Protocol-Version ${version.slice(0, 40)} is not supported`,
    meta: { problems: [{ code: 'INVALID_VALUE', path: 'MCP-Protocol-Version', message }] },
  })
}

/** Whether a body is the handshake of an older revision; in later ones there is none. */
function isInitialize(body: unknown): boolean {
  const { method, params } = (body ?? {}) as Partial<McpMessage>
  return method === 'initialize' && !Object.hasOwn((params?._meta as object | undefined) ?? {}, VERSION)
}

const VERSION = 'io.modelcontextprotocol/protocolVersion'

const InitializeParams = z.object({
  protocolVersion: z.string().default(FIRST),
  capabilities: z.record(z.string(), z.unknown()),
  clientInfo: z.object({ name: z.string(), version: z.string() }),
})

/**
 * Completes the parameters of `initialize`, or returns their first problem, which the SDK reports as an internal error.
 */
function initializeParams(params: unknown): Record<string, unknown> | string {
  const { data, error } = InitializeParams.safeParse(params ?? {})
  if (data) return { ...(params as object), ...data }
  const [issue] = error.issues
  const expected = 'expected' in issue ? `must be of type ${issue.expected}` : 'is invalid'
  return `params of initialize: ${['params', ...issue.path].join('.')} ${expected}`
}

/** Handles requests through the SDK server: the handshake and unknown methods. */
async function delegateToSdk(
  services: Services,
  exchange: MountExchange,
  message: McpMessage,
  modern: boolean,
): Promise<void> {
  const params = modern || !isInitialize(message) ? message.params : initializeParams(message.params)
  if (typeof params === 'string') {
    const error = { code: ProtocolErrorCode.InvalidParams, message: params }
    return exchange.end(200, JSON.stringify({ jsonrpc: '2.0', id: message.id, error }))
  }
  const transport = new PerRequestHTTPServerTransport({
    classification: modern ? { era: 'modern', revision: MODERN } : { era: 'legacy' },
    responseMode: 'json',
  })
  await serverOf(services, modern).connect(transport)
  const response = await transport.handleMessage({ jsonrpc: '2.0', ...message, params } as never)
  const text = await response.text()
  // Before 2026, protocol errors had HTTP status 200.
  if (response.status === 200 || !modern) return exchange.end(200, text)
  const { error } = JSON.parse(text) as { error: Omit<Refusal, 'httpStatus'> }
  refuseMessage(services, exchange, { httpStatus: response.status, ...error }, message)
}
