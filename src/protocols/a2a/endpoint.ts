import { Readable } from 'node:stream'
import { z } from 'zod'
import { dataMessage } from '#core/api/event-stream.ts'
import { parse, storabilityProblem } from '#core/api/validate.ts'
import { type AppError, raise } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { anonymousBodyError, rejectBody } from '#core/http/body.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import { httpLayerError } from '#core/http/responses.ts'
import { serveCard } from './card.ts'
import { FaultError, refuse, restError, restStatus, rpcError, rpcStatus } from './fault.ts'
import { type Method, methods, routes } from './methods.ts'
import { type A2aRequest, openTarget } from './target.ts'
import { PROTOCOL_VERSION } from './wire.ts'

const CARD_PATH = '/.well-known/agent-card.json'

/** Handles one request of /a2a/{id}. */
export async function serveA2a(services: Services, exchange: MountExchange): Promise<void> {
  const { req } = exchange
  const notFound = () => raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })
  if (!services.config.A2A_MOUNT) notFound()
  const id = String(req.params.target_id)
  const path = req.path.slice(`/a2a/${id}`.length).replace(/\/$/, '')
  if (path === CARD_PATH && (req.method === 'GET' || req.method === 'HEAD')) return serveCard(services, exchange, id)
  const request = await openRequest(services, exchange, id)
  exchange.res.setHeader('Cache-Control', 'no-store')
  if (path === '' && req.method === 'POST') return serveRpc(request)
  const route = routes.find(each => each.method === req.method && each.path.test(path)) ?? notFound()
  const values = (route.path.exec(path) as RegExpExecArray).slice(1).map(value => decodeURIComponent(value))
  return serveRest(request, route.name, Object.fromEntries(route.params.map((name, index) => [name, values[index]])))
}

/**
 * Authenticates the caller and opens the target.
 * @throws UNAUTHORIZED, FORBIDDEN, QUOTA_EXCEEDED, RESOURCE_NOT_FOUND
 */
async function openRequest(services: Services, exchange: MountExchange, id: string): Promise<A2aRequest> {
  const caller = await exchange.identify()
  if (!caller) throw anonymousBodyError(exchange.req)
  return { services, exchange, caller, ...(await openTarget(services, exchange, caller, id)) }
}

/** @throws VERSION_NOT_SUPPORTED */
function requireVersion({ exchange: { req } }: A2aRequest): void {
  const version = req.headers['a2a-version'] ?? req.query['A2A-Version']
  if (version !== PROTOCOL_VERSION)
    refuse('VERSION_NOT_SUPPORTED', `A2A-Version must be ${PROTOCOL_VERSION}`, { supported: [PROTOCOL_VERSION] })
}

const RpcRequest = z.object({
  jsonrpc: z.literal('2.0'),
  id: z.union([z.string().max(255), z.number()]),
  method: z.string().max(255),
  params: z.record(z.string(), z.unknown()).optional(),
})

/** How a binding sends results and errors. */
type Binding = {
  result(value: object): object
  error(error: AppError): { status: number; body: object }
  /** The last message of a stream that fails. */
  streamError(error: AppError): string
}

/** Runs a method and responds in the form of a binding. */
async function respond(request: A2aRequest, binding: Binding, run: () => Promise<Response>): Promise<void> {
  const { exchange } = request
  try {
    const response = await run()
    if ('updates' in response) {
      const stream = Readable.from(messagesOf(request, binding, response.updates), { objectMode: false })
      return exchange.stream(200, 'text/event-stream', stream)
    }
    exchange.end(200, JSON.stringify(binding.result(response.result)))
  } catch (error) {
    sendError(request, binding, error)
  }
}

type Response = { result: object } | { updates: AsyncIterable<string | Buffer> }

async function execute(request: A2aRequest, method: Method, params: unknown, { result }: Binding): Promise<Response> {
  requireVersion(request)
  const problem = storabilityProblem(params)
  if (problem) refuse('INVALID_PARAMS', problem.message, { problems: [problem] })
  const parsed = parse(method.params, params)
  return 'stream' in method
    ? { updates: await method.stream(request, parsed, result) }
    : { result: await method.call(request, parsed) }
}

async function* messagesOf(
  request: A2aRequest,
  binding: Binding,
  updates: AsyncIterable<string | Buffer>,
): AsyncGenerator<string | Buffer> {
  try {
    yield* updates
  } catch (error) {
    yield binding.streamError(refusalOf(request, error, 'stream failed'))
  }
}

/** Returns the refusal of an error, which is logged if it is a fault of the platform. */
function refusalOf({ services, exchange }: A2aRequest, error: unknown, message: string): AppError {
  const refusal = httpLayerError(error)
  if (refusal.code === 'INTERNAL_ERROR' && services.config.ERROR_LOGS_ENABLED)
    services.log.error({ request_id: exchange.request.id, err: refusal.cause ?? error }, message)
  return refusal
}

function sendError(request: A2aRequest, binding: Binding, error: unknown): void {
  const { exchange } = request
  const { req, res } = exchange
  const refusal = refusalOf(request, error, 'request failed')
  for (const [name, value] of Object.entries(refusal.headers ?? {})) res.setHeader(name, value)
  rejectBody(req, res)
  const { status, body } = binding.error(refusal)
  exchange.end(status, JSON.stringify(body))
}

async function serveRpc(request: A2aRequest): Promise<void> {
  const { DOCS_BASE_URL } = request.services.config
  let id: string | number | null = null
  const wrap = (content: object) => ({ jsonrpc: '2.0', id, ...content })
  const failure = (error: AppError) => wrap({ error: rpcError(error, DOCS_BASE_URL) })
  const binding: Binding = {
    result: result => wrap({ result }),
    error: error => ({ status: rpcStatus(error), body: failure(error) }),
    streamError: error => dataMessage(failure(error)),
  }
  await respond(request, binding, async () => {
    const body = await readBody(request)
    if (Array.isArray(body)) refuse('INVALID_REQUEST', 'Batches are not supported')
    const { data } = RpcRequest.safeParse(body)
    if (!data) return refuse('INVALID_REQUEST', 'The body must be a JSON-RPC 2.0 request with an id and a method')
    id = data.id
    request.exchange.noted.rpc_method = data.method
    if (!Object.hasOwn(methods, data.method)) refuse('METHOD_NOT_FOUND', `Unknown method ${data.method}`)
    return execute(request, methods[data.method], data.params ?? {}, binding)
  })
}

/** Reads the body. @throws PARSE_ERROR */
async function readBody({ exchange }: A2aRequest): Promise<unknown> {
  try {
    return await exchange.readJson()
  } catch (error) {
    const refusal = httpLayerError(error)
    throw refusal.code === 'VALIDATION_FAILED' ? new FaultError('PARSE_ERROR', refusal.message) : error
  }
}

async function serveRest(request: A2aRequest, name: string, inPath: Record<string, string>): Promise<void> {
  const { exchange, services } = request
  const { req } = exchange
  const failure = (error: AppError) => restError(error, services.config.DOCS_BASE_URL)
  const binding: Binding = {
    result: result => result,
    error: error => ({ status: restStatus(error), body: failure(error) }),
    streamError: error => `event: error\n${dataMessage(failure(error))}`,
  }
  await respond(request, binding, async () => {
    exchange.noted.rpc_method = name
    const body = req.method === 'POST' ? ((await readBody(request)) ?? {}) : req.query
    if (!isObject(body)) refuse('INVALID_PARAMS', 'The body must be a JSON object')
    return execute(request, methods[name], { ...(body as object), ...inPath }, binding)
  })
}
