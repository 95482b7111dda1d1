import type { ServerResponse } from 'node:http'
import { pipeline } from 'node:stream'
import cors from 'cors'
import express, { type Express, type NextFunction, type Request, type Response, Router } from 'express'
import passport from 'passport'
import { Strategy as BearerStrategy } from 'passport-http-bearer'
import { AppError, errorBody, raise } from '../api/errors.ts'
import type { Operation, OperationResult } from '../api/operation.ts'
import { withTenant } from '../db/tenant-context.ts'
import type { Caller } from '../iam/caller.ts'
import type { Call, RequestFacts } from '../invoke/call.ts'
import { authentication, countRequest, type Proof } from '../invoke/hooks.ts'
import { type Invocation, openInvocation } from '../invoke/invocation.ts'
import { executeInvocation } from '../invoke/invoke.ts'
import { toRefusal } from '../invoke/refusal-mapping.ts'
import { redactedPath } from '../process/log.ts'
import { httpRequests, requestDuration } from '../process/metrics.ts'
import type { Services } from '../process/services.ts'
import { countAnonymous } from './anonymous-bodies.ts'
import { anonymousBodyError, CLIENT_GONE, jsonReader, rejectBody, UNKNOWN_BODY_BYTES } from './body.ts'
import { type Mount, type MountExchange, mounts } from './mounts.ts'
import { limitBodyTime, limitReaderStall, requestIdOf } from './server.ts'

/** A request with what the first middleware noted. */
type Wire = Request & { requestId: string; startedAt: number }

/** What the log line and the metrics of a request say. */
type Line = { route: string; caller?: Caller; level?: 'info' | 'debug'; noted?: Record<string, unknown> }

/** A caller that was resolved before its body is resolved again behind a body that took longer. */
const IDENTITY_MS = 1000

/** A token that its client has to prove possession of a key with. */
const DPOP = /^dpop +(\S+) *$/i

const proofs = new WeakMap<Request, Proof>()

/** The proof of a request, one object for all that ask for it. */
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

/** Aborted when the client goes away. Made when asked for: few operations ask, and a signal costs more than a query's binding. */
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
 * Builds the HTTP application out of operations: reads requests into calls and writes their answers. `mount` adds what is
 * not an operation (documents, health).
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
    next()
  })
  app.use(
    cors({
      origin: config.CORS_ALLOWED_ORIGINS.includes('*') ? '*' : config.CORS_ALLOWED_ORIGINS,
      exposedHeaders: [
        'ETag',
        'Retry-After',
        'X-Request-Id',
        'Idempotency-Replayed',
        'WWW-Authenticate',
        'DPoP-Nonce',
        'Content-Disposition',
        'Content-Range',
      ],
      maxAge: 600,
    }),
  )
  mount(app)

  const bearer = bearerOf()
  const resolve = (req: Request): Promise<Caller | null> => {
    const authenticate = authentication.only()
    const bound = DPOP.exec(req.headers.authorization ?? '')?.[1]
    const token = bound ?? bearer(req)
    if (token === null || !authenticate) return Promise.resolve(null)
    return authenticate(services, token, {
      ip: req.ip ?? null,
      ...(bound !== undefined && { proof: proofOf(req) }),
    })
  }
  const readUnknown = jsonReader(UNKNOWN_BODY_BYTES)

  for (const each of mounts.all()) {
    const serve = mountedAt(each)
    app.all(each.path, (req: Request, res: Response) => void serve(req as Wire, res))
  }

  // One router per first path segment: a request is matched against the routes of its module only.
  const routers = new Map<string, Router>()
  for (const operation of operations) {
    const segment = operation.path.split('/')[1]
    let router = routers.get(segment)
    if (!router) {
      router = Router({ caseSensitive: true, strict: false })
      routers.set(segment, router)
    }
    const handle = handlerOf(operation)
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
        if (caller.credential.type === 'api_key' && caller.project_id)
          await countRequest(services, caller, caller.project_id)
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

  /** Writes a refusal and the request's log line. */
  function sendError(
    error: unknown,
    req: Wire,
    res: Response,
    { route, operation, caller }: { route: string; operation?: string; caller?: Caller },
  ) {
    const refused = httpLayerError(error)
    if (refused.code === 'INTERNAL_ERROR' && config.ERROR_LOGS_ENABLED) {
      const path = redactedPath(req.path)
      const err = refused.cause ?? error
      log.error({ request_id: req.requestId, method: req.method, path, operation, err }, 'request failed')
    }
    if (res.headersSent) {
      res.destroy()
      return
    }
    // Of clients that leave in the middle of a body there may be thousands.
    const isSilent = !caller && !req.complete && (req.destroyed || res.closed)
    const text = JSON.stringify(errorBody(refused, config.DOCS_BASE_URL))
    for (const [name, value] of Object.entries(refused.headers ?? {})) res.setHeader(name, value)
    if (refused.code === 'UNAUTHORIZED' && !res.hasHeader('WWW-Authenticate'))
      res.setHeader('WWW-Authenticate', 'Bearer')
    rejectBody(req, res)
    end(req, res, refused.status, text, { route, caller, level: isSilent ? 'debug' : 'info' })
  }

  /** Writes a JSON answer and the request's log line. */
  function end(req: Wire, res: ServerResponse, status: number, text: string | null, line: Line) {
    res.statusCode = status
    if (text !== null) {
      res.setHeader('Content-Type', 'application/json; charset=utf-8')
      res.setHeader('Content-Length', Buffer.byteLength(text))
      res.end(req.method === 'HEAD' ? undefined : text)
    } else res.end()
    done(req, status, line)
  }

  function done(req: Wire, status: number, { route, caller, noted, level = 'info' }: Line) {
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
        ...noted,
      },
      'request',
    )
  }

  const factsOf = (req: Wire, res: Response): RequestFacts => ({
    id: req.requestId,
    receivedAt: new Date(Date.now() - (performance.now() - req.startedAt)),
    ip: req.ip ?? null,
    userAgent: req.headers['user-agent'] ?? null,
    headers: req.headers,
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
      // Read once: Express parses it anew at every access.
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

  /** Serves the requests of a mount. */
  function mountedAt({ path, serve }: Mount): (req: Wire, res: Response) => Promise<void> {
    const read = jsonReader(config.HTTP_JSON_LIMIT_BYTES)
    return async (req, res) => {
      let caller: Caller | undefined
      const noted: Record<string, unknown> = {}
      const exchange: MountExchange = {
        req,
        res,
        request: factsOf(req, res),
        noted,
        async identify() {
          const found = await resolve(req)
          caller = found ?? undefined
          return found
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
        await serve(services, exchange)
      } catch (error) {
        sendError(error, req, res, { route: path, caller })
      }
    }
  }

  function handlerOf(operation: Operation): (req: Wire, res: Response) => Promise<void> {
    const open = operation.gate === 'public'
    const limit = operation.bodyLimit?.(config) ?? (open ? UNKNOWN_BODY_BYTES : config.HTTP_JSON_LIMIT_BYTES)
    const read = jsonReader(limit)
    const knownMs = operation.receive ? config.UPLOAD_TIMEOUT_MS : config.HTTP_BODY_TIMEOUT_MS
    const openMs = operation.bodyTimeMs?.(config) ?? config.HTTP_ANONYMOUS_BODY_TIMEOUT_MS
    /**
     * Reads the body; of who has no credential no more than it takes to say what is wrong with a small one. Gives what
     * asks for the caller from then on.
     */
    const readBody = async (req: Wire, res: Response): Promise<Call['identify']> => {
      const identify = () => resolve(req)
      if (operation.method === 'get') return identify
      const startedAt = performance.now()
      const caller = open ? null : await identify()
      const refused = open || caller ? null : anonymousBodyError(req)
      if (refused && (operation.receive || refused.code !== 'UNAUTHORIZED')) throw refused
      const totalMs = caller ? knownMs : openMs
      limitBodyTime(req, { totalMs, idleMs: Math.min(config.HTTP_IDLE_TIMEOUT_MS, totalMs) })
      if (!operation.receive) {
        const reader = refused ? readUnknown : read
        const count = caller ? undefined : countAnonymous(services, `address ${req.ip}`, closedSignal(res))
        await reader(req, res, count)
      }
      if (refused) throw refused
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
        const given = await executeInvocation(invocation)
        if (given.stream && req.method !== 'HEAD') {
          // What a stream reads counts as its project's work; it is not given up for having to wait.
          const tenancy = { ...invocation.tenancy, patienceMs: Number.POSITIVE_INFINITY }
          const { caller } = invocation
          return withTenant(tenancy, () => sendStream(req, res, given, { route: operation.path, caller }))
        }
        given.stream?.destroy()
        if (given.contentType) res.setHeader('Content-Type', given.contentType)
        for (const [name, value] of Object.entries(given.headers ?? {})) res.setHeader(name, value)
        const silent = given.body === undefined || given.status === 204 || given.status === 304
        const text = silent ? null : (given.text ?? JSON.stringify(given.body))
        end(req, res, given.status, text, { route: operation.path, caller: invocation.caller })
      } catch (error) {
        sendError(error, req, res, { route: operation.path, operation: operation.id, caller: invocation?.caller })
      }
    }
  }

  function sendStream(req: Wire, res: Response, given: OperationResult, line: Line): void {
    res.statusCode = given.status
    res.setHeader('Content-Type', given.contentType as string)
    for (const [name, value] of Object.entries(given.headers ?? {})) res.setHeader(name, value)
    res.flushHeaders()
    limitReaderStall(res, config.HTTP_IDLE_TIMEOUT_MS)
    pipeline(given.stream as NonNullable<OperationResult['stream']>, res, error => {
      // A client that leaves closes the answer early; anything else is a failure after the status went out.
      if (error && error.code !== 'ERR_STREAM_PREMATURE_CLOSE' && config.ERROR_LOGS_ENABLED)
        log.error({ request_id: req.requestId, route: line.route, err: error }, 'answer broken off')
      done(req, given.status, line)
    })
  }
  return app
}

/** What was thrown where a body is read, as a catalogued error: a body that cannot be read, a refusal of the HTTP layer. */
export function httpLayerError(error: unknown): AppError {
  const known = toRefusal(error)
  if (known) return known
  const layer = error as { type?: string; status?: number; statusCode?: number; expose?: boolean; message?: string }
  const status = layer.status ?? layer.statusCode
  if (layer.type === 'entity.parse.failed')
    return new AppError('VALIDATION_FAILED', {
      message: `Malformed request body: ${layer.message ?? 'not JSON'}`,
      meta: { problems: [{ code: 'MALFORMED', path: '', message: 'is not JSON' }] },
    })
  if (typeof status === 'number' && status >= 400 && status < 500)
    return new AppError('REQUEST_REJECTED', { status, message: layer.message })
  return new AppError('INTERNAL_ERROR', { cause: error })
}

/**
 * The bearer token of a request, by passport's bearer strategy. Only the Authorization header is offered to it:
 * tokens in a query or a body are not accepted.
 */
function bearerOf(): (req: Request) => string | null {
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
