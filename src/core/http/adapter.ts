import type { ServerResponse } from 'node:http'
import { pipeline } from 'node:stream'
import cors from 'cors'
import express, { type Express, type NextFunction, type Request, type Response, Router } from 'express'
import passport from 'passport'
import { Strategy as BearerStrategy } from 'passport-http-bearer'
import { AppError, errorBody, raise } from '../api/errors.ts'
import type { Operation } from '../api/operation.ts'
import { type Hooks, RequestRun, type Wire } from '../api/request.ts'
import type { Caller } from '../iam/caller.ts'
import { loggedPath } from '../process/log.ts'
import { requestDuration, requests } from '../process/metrics.ts'
import type { Services } from '../process/services.ts'
import { boundBody, boundReader, requestIdOf } from './server.ts'

/** Builds the HTTP application out of operations. `mount` adds what is not an operation (documents, health). */
export function createHttp(
  services: Services,
  operations: readonly Operation[],
  hooks: Hooks,
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
        'Content-Disposition',
        'Content-Range',
      ],
      maxAge: 600,
    }),
  )
  mount(app)

  const bearer = bearerOf()
  const jsonReader = (limit: number) => express.json({ limit, type: () => true, strict: false })
  const readJson = jsonReader(config.HTTP_JSON_LIMIT_BYTES)
  const identify = (req: Request): Promise<Caller | null> => {
    const token = bearer(req)
    return token === null ? Promise.resolve(null) : hooks.authenticate(token, { ip: req.ip ?? null })
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
    const handle = createHandler(services, hooks, operation, identify)
    const readBody = operation.bodyLimit ? jsonReader(operation.bodyLimit(config)) : readJson
    const withoutReader = operation.method === 'get' || operation.receive !== undefined
    const time = {
      totalMs: operation.receive ? config.UPLOAD_TIMEOUT_MS : config.HTTP_BODY_TIMEOUT_MS,
      idleMs: config.HTTP_IDLE_TIMEOUT_MS,
    }
    router[operation.method](
      operation.path.replaceAll(/\{(\w+)\}/g, ':$1'),
      (req: Request, res: Response, next: NextFunction) => {
        if (operation.method !== 'get') boundBody(req, time)
        if (withoutReader) return void handle(req as Wire, res).catch(next)
        readBody(req, res, error => (error ? next(error) : void handle(req as Wire, res).catch(next)))
      },
    )
  }
  app.use('/api/v1', (req: Request, res: Response, next: NextFunction) => {
    const router = routers.get(req.path.split('/')[1])
    if (router) router(req, res, next)
    else next()
  })
  app.use('/api/v1', (req: Request, _res: Response, next: NextFunction) => {
    identify(req)
      .then(async caller => {
        if (!caller) raise('UNAUTHORIZED')
        if (caller.credential.type === 'api_key' && caller.project_id)
          await hooks.countRequest(caller, caller.project_id)
        raise('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.baseUrl}${req.path}` })
      })
      .catch(next)
  })
  app.use((req: Request, _res: Response, next: NextFunction) =>
    next(new AppError('RESOURCE_NOT_FOUND', { message: `No route ${req.method} ${req.path}` })),
  )
  app.use((error: unknown, req: Request, res: Response, _next: NextFunction) => {
    sendError(error, req as Wire, res)
  })

  function sendError(error: unknown, req: Wire, res: Response) {
    const refused = refusedByLayer(error)
    if (refused.status >= 500 && config.ERROR_LOGS_ENABLED && refused.code === 'INTERNAL_ERROR') {
      log.error(
        { request_id: req.requestId, method: req.method, path: loggedPath(req.path), err: refused.cause ?? error },
        'request failed',
      )
    }
    if (res.headersSent) {
      res.destroy()
      return
    }
    const text = JSON.stringify(errorBody(refused, config.DOCS_BASE_URL))
    for (const [name, value] of Object.entries(refused.headers ?? {})) res.setHeader(name, value)
    if (refused.code === 'UNAUTHORIZED' && !res.hasHeader('WWW-Authenticate'))
      res.setHeader('WWW-Authenticate', 'Bearer')
    end(req, res, refused.status, text, 'unmatched')
  }

  /** Writes a JSON answer and the request's log line. */
  function end(req: Wire, res: ServerResponse, status: number, text: string | null, route: string, caller?: Caller) {
    res.statusCode = status
    if (text !== null) {
      res.setHeader('Content-Type', 'application/json; charset=utf-8')
      res.setHeader('Content-Length', Buffer.byteLength(text))
      res.end(req.method === 'HEAD' ? undefined : text)
    } else res.end()
    done(req, status, route, caller)
  }

  function done(req: Wire, status: number, route: string, caller?: Caller) {
    const ms = performance.now() - req.startedAt
    requests.inc({ method: req.method, route, status: String(status) })
    requestDuration.observe({ method: req.method, route, status: String(status) }, ms / 1000)
    log.info(
      {
        request_id: req.requestId,
        method: req.method,
        path: loggedPath(req.originalUrl),
        status,
        ms: Math.round(ms * 10) / 10,
        principal_id: caller?.principal.id,
      },
      'request',
    )
  }

  function createHandler(
    services: Services,
    hooks: Hooks,
    operation: Operation,
    identify: (req: Request) => Promise<Caller | null>,
  ) {
    return async (req: Wire, res: Response): Promise<void> => {
      const run = new RequestRun(services, hooks, operation, req, res)
      try {
        const given = await run.carryOut(identify)
        if (given.stream && req.method !== 'HEAD') {
          res.statusCode = given.status
          res.setHeader('Content-Type', given.contentType as string)
          for (const [name, value] of Object.entries(given.headers ?? {})) res.setHeader(name, value)
          res.flushHeaders()
          boundReader(res, config.HTTP_IDLE_TIMEOUT_MS)
          pipeline(given.stream, res, error => {
            // A client that leaves closes the answer early; anything else is a failure after the status went out.
            if (error && error.code !== 'ERR_STREAM_PREMATURE_CLOSE' && config.ERROR_LOGS_ENABLED)
              log.error({ request_id: req.requestId, operation: operation.id, err: error }, 'answer broken off')
            done(req, given.status, operation.path, run.caller)
          })
          return
        }
        given.stream?.destroy()
        if (given.contentType) res.setHeader('Content-Type', given.contentType)
        for (const [name, value] of Object.entries(given.headers ?? {})) res.setHeader(name, value)
        const text =
          given.body === undefined || given.status === 204 || given.status === 304
            ? null
            : typeof given.body === 'string' && run.bodyIsText
              ? given.body
              : JSON.stringify(given.body)
        end(req, res, given.status, text, operation.path, run.caller)
      } catch (error) {
        const refused = await run.refusal(error)
        await run.recordRefusal(refused)
        if (refused.status >= 500 && refused.code === 'INTERNAL_ERROR' && config.ERROR_LOGS_ENABLED) {
          log.error(
            {
              request_id: req.requestId,
              method: req.method,
              path: loggedPath(req.path),
              operation: operation.id,
              err: refused.cause ?? error,
            },
            'request failed',
          )
        }
        if (res.headersSent) {
          res.destroy()
          return
        }
        for (const [name, value] of Object.entries(refused.headers ?? {})) res.setHeader(name, value)
        if (refused.code === 'UNAUTHORIZED') res.setHeader('WWW-Authenticate', 'Bearer')
        end(
          req,
          res,
          refused.status,
          JSON.stringify(errorBody(refused, config.DOCS_BASE_URL)),
          operation.path,
          run.caller,
        )
      }
    }
  }
  return app
}

/** What was thrown where a body is read, as a catalogued error: a body that cannot be read, a refusal of the HTTP layer. */
export function refusedByLayer(error: unknown): AppError {
  if (error instanceof AppError) return error
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
 * tokens in a query or a body are not accepted (identity, 1.1).
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
