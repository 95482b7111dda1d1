import express, {
  type Express,
  type NextFunction,
  type Request,
  type RequestHandler,
  type Response,
  Router,
} from 'express'
import type { Operation } from '../api/operation.ts'
import { RequestCount } from '../api/request-count.ts'
import { AppError, raise } from '../base/errors.ts'
import { release } from '../base/release.ts'
import type { Services } from '../base/services.ts'
import { isTracing, startSpan, withSpan } from '../base/telemetry.ts'
import { anonymousBodyError } from './body.ts'
import { crossOrigin } from './cors.ts'
import { type HttpParts, mountHandler } from './mount-handler.ts'
import { mounts } from './mounts.ts'
import { OperationHandler } from './operation-handler.ts'
import { CallerResolver, serverSpan, type Wire } from './requests.ts'
import { ResponseWriter } from './responses.ts'
import { requestIdOf } from './server.ts'

/**
 * Builds the HTTP application from operations: converts requests to calls and writes their responses. `mount` adds
 * other endpoints (documents, health).
 */
export function createHttp(
  services: Services,
  operations: readonly Operation[],
  mount: (app: Express) => void,
): Express {
  const { config } = services
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
  // Assets and probes above have no spans.
  app.use((req: Request, res: Response, next: NextFunction) => {
    if (!isTracing()) return next()
    const wire = req as Wire
    const span = startSpan(serverSpan, { req: wire, config })
    wire.span = span
    // After the log line of a stream, which has the outcome. Responses past the writer have none.
    res.once('close', () => setImmediate(() => span?.endUnkept()))
    withSpan(span, next)
  })

  const callers = new CallerResolver(services)
  const responses = new ResponseWriter(services)
  const http = { services, callers, responses }
  for (const each of mounts.all()) {
    const serve = mountHandler(http, each)
    app.all(each.path, (req: Request, res: Response) => void serve(req as Wire, res))
  }
  app.use('/api/v1', operationRouter(http, operations))
  app.use('/api/v1', (req: Request, _res: Response, next: NextFunction) => {
    callers
      .resolve(req)
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
    responses.error(error, req as Wire, res, { route: 'unmatched' })
  })
  return app
}

/** Returns the handler of the operations: one router per first path segment, so that a request is only matched against its module. */
function operationRouter(http: HttpParts, operations: readonly Operation[]): RequestHandler {
  const routers = new Map<string, Router>()
  for (const operation of operations) {
    const segment = operation.path.split('/')[1]
    let router = routers.get(segment)
    if (!router) {
      router = Router({ caseSensitive: true, strict: false })
      routers.set(segment, router)
    }
    const handler = new OperationHandler(http, operation)
    router[operation.method](operation.path.replaceAll(/\{(\w+)\}/g, ':$1'), (req: Request, res: Response) => {
      void handler.handle(req as Wire, res)
    })
  }
  return (req, res, next) => {
    const router = routers.get(req.path.split('/')[1])
    if (router) router(req, res, next)
    else next()
  }
}
