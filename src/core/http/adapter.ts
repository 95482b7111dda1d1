import type { ServerResponse } from 'node:http'
import express, { type Express, type NextFunction, type Request, type Response, Router } from 'express'
import passport from 'passport'
import { Strategy as BearerStrategy } from 'passport-http-bearer'
import type { Call, RequestFacts } from '../api/call.ts'
import { endUserError } from '../api/end-user.ts'
import type { Operation, OperationResult } from '../api/operation.ts'
import { RequestCount } from '../api/request-count.ts'
import { timeIn } from '../base/clock.ts'
import { AppError, errorBody, raise } from '../base/errors.ts'
import { redactedPath } from '../base/log.ts'
import { httpRequests, requestDuration } from '../base/metrics.ts'
import { release } from '../base/release.ts'
import type { Services } from '../base/services.ts'
import { withTenant } from '../db/tenant-context.ts'
import type { Caller } from '../iam/caller.ts'
import { authentication, type Proof } from '../invoke/hooks.ts'
import { type Invocation, openInvocation } from '../invoke/invocation.ts'
import { executeInvocation } from '../invoke/invoke.ts'
import { toRefusal } from '../invoke/refusal-mapping.ts'
import { requireStorableParams } from '../invoke/resolve.ts'
import { countAnonymous } from './anonymous-bodies.ts'
import { anonymousBodyError, CLIENT_GONE, jsonReader, rejectBody, UNKNOWN_BODY_BYTES } from './body.ts'
import { crossOrigin } from './cors.ts'
import { type Mount, type MountExchange, mounts } from './mounts.ts'
import { limitBodyTime, requestIdOf } from './server.ts'

/** A request with the fields set by the first middleware. */
type Wire = Request & { requestId: string; startedAt: number }

/** Data for the log line and the metrics of a request. */
type RequestLog = { route: string; caller?: Caller; level?: 'info' | 'debug'; noted?: Record<string, unknown> }

/** Maximum age of a caller resolved before the body was read; after a slower body it is resolved again. */
const IDENTITY_MS = 1000

/** An Authorization header with a token bound to a key of the client. */
const DPOP = /^dpop +(\S+) *$/i

const proofs = new WeakMap<Request, Proof>()

/** Returns the proof of a request, always the same object. */
function proofOf(req: Request): Proof {
  let proof = proofs.get(req)
  if (!proof) {
    const jwt = req.headers.dpop
    proof = {
      jwt: typeof jwt === 'string' ? jwt : undefined,
      method: req.method,
      path: req.originalUrl.split('?', 1)[0],
      accepted: false,
    }
    proofs.set(req, proof)
  }
  return proof
}

const closedSignals = new WeakMap<Response, AbortSignal>()

/**
 * Returns a signal that is aborted when the client disconnects. Created lazily, because few operations use it and a
 * signal costs more than binding a query.
 */
function closedSignal(res: Response): AbortSignal {
  let signal = closedSignals.get(res)
  if (!signal) {
    const controller = new AbortController()
    if (res.closed) controller.abort(CLIENT_GONE)
    else res.once('close', () => controller.abort(CLIENT_GONE))
    signal = controller.signal
    closedSignals.set(res, signal)
  }
  return signal
}

/**
 * Builds the HTTP application from operations: converts requests to calls and writes their responses. `mount` adds
 * other endpoints (documents, health).
 */
export function createHttp(
  services: Services,
  operations: readonly Operation[],
  mount: (app: Express) => void,
): Express {
  const { config, log } = services
  const app = express()
  app.disable('x-powered-by')
  app.set('etag', false)
  app.set('query parser', 'extended')
  app.set('trust proxy', config.TRUST_PROXY)

  app.use((req: Request, res: Response, next: NextFunction) => {
    const wire = req as Wire
    wire.requestId = requestIdOf(req)
    wire.startedAt = performance.now()
    res.setHeader('X-Request-Id', wire.requestId)
    // The command line notes the difference of the versions.
    if (req.headers['x-muster-client'] !== undefined) res.setHeader('X-Muster-Version', release)
    next()
  })
  app.use(crossOrigin(config))
  mount(app)

  const bearer = bearerTokenReader()
  const resolve = (req: Request): Promise<Caller | null> => {
    const authenticate = authentication.only()
    const bound = DPOP.exec(req.headers.authorization ?? '')?.[1]
    const token = bound ?? bearer(req)
    if (token === null || !authenticate) return Promise.resolve(null)
    return authenticate(services, token, {
      ip: req.ip ?? null,
      origin: req.headers.origin,
      ...(bound !== undefined && { proof: proofOf(req) }),
    })
  }
  /** Resolves a caller by a ticket, which is consumed once and then stands for its credential. */
  const resolveTicket = ({ ticket: consume, param }: Operation, req: Request, ticket: string) => {
    let token: Promise<string | null> | undefined
    return async (): Promise<Caller | null> => {
      token ??= consume?.(services, ticket, String(req.params[param as string])) ?? Promise.resolve(null)
      const bearer = await token
      const authenticate = authentication.only()
      return bearer !== null && authenticate
        ? authenticate(services, bearer, { ip: req.ip ?? null, origin: req.headers.origin, byTicket: true })
        : null
    }
  }
  const readAnonymous = jsonReader(UNKNOWN_BODY_BYTES)

  for (const each of mounts.all()) {
    const serve = mountHandler(each)
    app.all(each.path, (req: Request, res: Response) => void serve(req as Wire, res))
  }

  // One router per first path segment, so that a request is only matched against the routes of its module.
  const routers = new Map<string, Router>()
  for (const operation of operations) {
    const segment = operation.path.split('/')[1]
    let router = routers.get(segment)
    if (!router) {
      router = Router({ caseSensitive: true, strict: false })
      routers.set(segment, router)
    }
    const handle = operationHandler(operation)
    router[operation.method](operation.path.replaceAll(/\{(\w+)\}/g, ':$1'), (req: Request, res: Response) => {
      void handle(req as Wire, res)
    })
  }
  app.use('/api/v1', (req: Request, res: Response, next: NextFunction) => {
    const router = routers.get(req.path.split('/')[1])
    if (router) router(req, res, next)
    else next()
  })
  app.use('/api/v1', (req: Request, _res: Response, next: NextFunction) => {
    resolve(req)
      .then(async caller => {
        if (!caller) throw anonymousBodyError(req)
        await new RequestCount(services).in(caller, caller.project_id)
        raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.baseUrl}${req.path}` })
      })
      .catch(next)
  })
  app.use((req: Request, _res: Response, next: NextFunction) =>
    next(new AppError('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })),
  )
  app.use((error: unknown, req: Request, res: Response, _next: NextFunction) => {
    sendError(error, req as Wire, res, { route: 'unmatched' })
  })

  /** Writes a refusal and the log line of the request. */
  function sendError(
    error: unknown,
    req: Wire,
    res: Response,
    { route, operation, caller }: { route: string; operation?: string; caller?: Caller },
  ) {
    const thrown = httpLayerError(error)
    const refusal = caller?.end_user ? endUserError(thrown) : thrown
    if (refusal.code === 'INTERNAL_ERROR' && config.ERROR_LOGS_ENABLED) {
      const path = redactedPath(req.path)
      const err = refusal.cause ?? error
      log.error({ request_id: req.requestId, method: req.method, path, operation, err }, 'request failed')
    }
    if (res.headersSent) {
      res.destroy()
      return
    }
    // Thousands of anonymous clients may disconnect during their bodies.
    const isSilent = !caller && !req.complete && (req.destroyed || res.closed)
    const text = JSON.stringify(errorBody(refusal, config.DOCS_BASE_URL))
    for (const [name, value] of Object.entries(refusal.headers ?? {})) res.setHeader(name, value)
    if (refusal.code === 'UNAUTHORIZED' && !res.hasHeader('WWW-Authenticate'))
      res.setHeader('WWW-Authenticate', 'Bearer')
    rejectBody(req, res)
    end(req, res, refusal.status, text, { route, caller, level: isSilent ? 'debug' : 'info' })
  }

  /** Writes a JSON response and the log line of the request. */
  function end(req: Wire, res: ServerResponse, status: number, text: string | null, entry: RequestLog) {
    res.statusCode = status
    if (text !== null) {
      res.setHeader('Content-Type', 'application/json; charset=utf-8')
      res.setHeader('Content-Length', Buffer.byteLength(text))
      res.end(req.method === 'HEAD' ? undefined : text)
    } else res.end()
    logRequest(req, status, entry)
  }

  function logRequest(req: Wire, status: number, { route, caller, noted, level = 'info' }: RequestLog) {
    const ms = performance.now() - req.startedAt
    httpRequests.inc({ method: req.method, route, status: String(status) })
    requestDuration.observe({ method: req.method, route, status: String(status) }, ms / 1000)
    log[level](
      {
        request_id: req.requestId,
        method: req.method,
        path: redactedPath(req.originalUrl),
        status,
        ms: Math.round(ms * 10) / 10,
        principal_id: caller?.principal.id,
        actor_id: caller?.end_user?.actor_id,
        ...noted,
      },
      'request',
    )
  }

  const factsOf = (req: Wire, res: Response): RequestFacts => ({
    id: req.requestId,
    receivedAt: timeIn(req.startedAt - performance.now()),
    ip: req.ip ?? null,
    userAgent: req.headers['user-agent'] ?? null,
    headers: req.headers,
    count: new RequestCount(services),
    get closed() {
      return closedSignal(res)
    },
  })

  function callOf(req: Wire, res: Response, identify: Call['identify']): Call {
    const header = (name: 'if-match' | 'if-none-match' | 'idempotency-key') => req.headers[name] as string | undefined
    return {
      surface: 'rest',
      identify,
      params: req.params as Record<string, string>,
      // Read once, because Express parses the query on every access.
      query: req.query,
      body: req.body === '' ? undefined : req.body,
      path: req.originalUrl.split('?', 1)[0],
      idempotencyKey: header('idempotency-key'),
      ifMatch: header('if-match'),
      ifNoneMatch: header('if-none-match'),
      upload: req,
      request: factsOf(req, res),
    }
  }

  /** Returns the handler of a mount. */
  function mountHandler({ path, endUsers, bodyLimit, serve }: Mount): (req: Wire, res: Response) => Promise<void> {
    const read = jsonReader(bodyLimit ?? config.HTTP_JSON_LIMIT_BYTES)
    return async (req, res) => {
      let caller: Caller | undefined
      const noted: Record<string, unknown> = {}
      const request = factsOf(req, res)
      const exchange: MountExchange = {
        req,
        res,
        request,
        noted,
        async identify() {
          const resolved = await resolve(req)
          const identified = resolved?.end_user && !endUsers ? null : resolved
          caller = identified ?? undefined
          if (caller) await request.count?.in(caller, caller.project_id)
          return identified
        },
        async readJson() {
          if (!caller) throw anonymousBodyError(req)
          const totalMs = config.HTTP_BODY_TIMEOUT_MS
          limitBodyTime(req, { totalMs, idleMs: Math.min(config.HTTP_IDLE_TIMEOUT_MS, totalMs) })
          await read(req, res)
          return req.body === '' ? undefined : req.body
        },
        end: (status, text) => end(req, res, status, text, { route: path, caller, noted }),
        stream: (status, contentType, stream) =>
          sendStream(req, res, { status, contentType, stream }, { route: path, caller, noted }),
      }
      try {
        requireStorableParams(req.params)
        await serve(services, exchange)
      } catch (error) {
        sendError(error, req, res, { route: path, caller })
      }
    }
  }

  function operationHandler(operation: Operation): (req: Wire, res: Response) => Promise<void> {
    const isPublic = operation.gate === 'public'
    const limit = operation.bodyLimit?.(config) ?? (isPublic ? UNKNOWN_BODY_BYTES : config.HTTP_JSON_LIMIT_BYTES)
    const read = jsonReader(limit)
    const callerMs = operation.receive ? config.UPLOAD_TIMEOUT_MS : config.HTTP_BODY_TIMEOUT_MS
    const anonymousMs = operation.bodyTimeMs?.(config) ?? config.HTTP_ANONYMOUS_BODY_TIMEOUT_MS
    /**
     * Reads the body and returns the function that resolves the caller. Without a credential, reads only a small body,
     * so that its problems can be reported.
     */
    const readBody = async (req: Wire, res: Response): Promise<Call['identify']> => {
      const { ticket } = req.query
      if (operation.ticket && typeof ticket === 'string') return resolveTicket(operation, req, ticket)
      const identify = () => resolve(req)
      if (operation.method === 'get') return identify
      const startedAt = performance.now()
      const caller = isPublic ? null : await identify()
      const refusal = isPublic || caller ? null : anonymousBodyError(req)
      if (refusal && (operation.receive || refusal.code !== 'UNAUTHORIZED')) throw refusal
      const totalMs = caller ? callerMs : anonymousMs
      limitBodyTime(req, { totalMs, idleMs: Math.min(config.HTTP_IDLE_TIMEOUT_MS, totalMs) })
      if (!operation.receive) {
        const reader = refusal ? readAnonymous : read
        const count = caller ? undefined : countAnonymous(services, `address ${req.ip}`, closedSignal(res))
        await reader(req, res, count)
      }
      if (refusal) throw refusal
      let first = true
      return () => {
        const fresh = first && performance.now() - startedAt < IDENTITY_MS
        first = false
        return fresh ? Promise.resolve(caller) : identify()
      }
    }
    return async (req, res) => {
      let invocation: Invocation | undefined
      try {
        const identify = await readBody(req, res)
        invocation = openInvocation(services, operation, callOf(req, res, identify))
        const result = await executeInvocation(invocation)
        if (result.stream && req.method !== 'HEAD') {
          // Reads of a stream count as work of its project, and may wait without a limit.
          const tenant = { ...invocation.tenancy, patienceMs: Number.POSITIVE_INFINITY }
          const { caller } = invocation
          return withTenant(tenant, () => sendStream(req, res, result, { route: operation.path, caller }))
        }
        result.stream?.destroy()
        if (result.contentType) res.setHeader('Content-Type', result.contentType)
        for (const [name, value] of Object.entries(result.headers ?? {})) res.setHeader(name, value)
        const isEmpty = result.body === undefined || result.status === 204 || result.status === 304
        const text = isEmpty ? null : (result.text ?? JSON.stringify(result.body))
        end(req, res, result.status, text, { route: operation.path, caller: invocation.caller })
      } catch (error) {
        sendError(error, req, res, { route: operation.path, operation: operation.id, caller: invocation?.caller })
      }
    }
  }

  function sendStream(req: Wire, res: Response, result: OperationResult, entry: RequestLog): void {
    const stream = result.stream as NonNullable<OperationResult['stream']>
    // The client has disconnected meanwhile. The end of the stream releases its resources.
    if (res.destroyed) {
      stream.destroy()
      logRequest(req, result.status, entry)
      return
    }
    res.statusCode = result.status
    res.setHeader('Content-Type', result.contentType as string)
    for (const [name, value] of Object.entries(result.headers ?? {})) res.setHeader(name, value)
    // With the first bytes, if they are available.
    if (stream.readableLength === 0) res.flushHeaders()
    // In place of `pipeline`, which keeps 6 KiB for each open stream.
    stream.on('error', error => {
      if (config.ERROR_LOGS_ENABLED)
        log.error({ request_id: req.requestId, route: entry.route, err: error }, 'response stream failed')
    })
    const abort = () => {
      if (!res.writableEnded) res.destroy()
    }
    stream.once('close', abort)
    res.on('error', abort)
    res.once('close', () => {
      stream.destroy()
      logRequest(req, result.status, entry)
    })
    if (stream.destroyed) abort()
    else stream.pipe(res)
  }
  return app
}

/** Converts an error thrown in the HTTP layer, such as an unreadable body, to a catalogued error. */
export function httpLayerError(error: unknown): AppError {
  const refusal = toRefusal(error)
  if (refusal) return refusal
  const layer = error as { type?: string; status?: number; statusCode?: number; expose?: boolean; message?: string }
  const status = layer.status ?? layer.statusCode
  if (layer.type === 'entity.parse.failed')
    return new AppError('VALIDATION_FAILED', {
      message: `Malformed request body: ${layer.message ?? 'not JSON'}`,
      meta: { problems: [{ code: 'MALFORMED', path: '', message: 'must be JSON' }] },
    })
  if (typeof status === 'number' && status >= 400 && status < 500)
    return new AppError('REQUEST_REJECTED', { status, message: layer.message })
  return new AppError('INTERNAL_ERROR', { cause: error })
}

/**
 * Returns a reader of bearer tokens that uses passport's bearer strategy. It passes only the Authorization header, so
 * that tokens in a query or a body are not accepted.
 */
function bearerTokenReader(): (req: Request) => string | null {
  const authenticator = new passport.Passport()
  authenticator.use(new BearerStrategy((token, done) => done(null, { token })))
  const middleware = (shim: object, found: (user: unknown) => void) =>
    authenticator.authenticate('bearer', { session: false }, (_error: unknown, user: unknown) => found(user))(
      shim,
      {},
      () => found(null),
    )
  return req => {
    const { authorization } = req.headers
    if (!authorization) return null
    let token: string | null = null
    middleware({ headers: { authorization } }, user => {
      token = user ? (user as { token: string }).token : null
    })
    return token
  }
}
