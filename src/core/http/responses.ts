import type { ServerResponse } from 'node:http'
import type { Response } from 'express'
import { endUserError } from '../api/end-user.ts'
import type { OperationResult } from '../api/operation.ts'
import { AppError, errorBody } from '../base/errors.ts'
import { type Logger, redactedPath } from '../base/log.ts'
import { httpRequests, requestDuration } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import { ATTRIBUTE } from '../base/telemetry-names.ts'
import { type Caller, isAdmin } from '../iam/caller.ts'
import { toRefusal } from '../invoke/refusal-mapping.ts'
import { rejectBody } from './body.ts'
import type { Wire } from './requests.ts'

/** Data for the log line and the metrics of a request. */
type RequestLog = {
  route: string
  caller?: Caller
  level?: 'info' | 'debug'
  noted?: Record<string, unknown>
  /** Code of a refusal. */
  code?: string
}

/** Writes responses with the log line and the metrics of their requests. */
export class ResponseWriter {
  readonly #config: Services['config']
  readonly #log: Logger

  constructor({ config, log }: Services) {
    this.#config = config
    this.#log = log
  }

  /** Writes a refusal and the log line of the request. */
  error(
    error: unknown,
    req: Wire,
    res: Response,
    { route, operation, caller }: { route: string; operation?: string; caller?: Caller },
  ): void {
    const thrown = httpLayerError(error)
    const refusal = caller?.end_user ? endUserError(thrown) : thrown
    if (refusal.code === 'INTERNAL_ERROR' && this.#config.ERROR_LOGS_ENABLED) {
      const path = redactedPath(req.path)
      const err = refusal.cause ?? error
      this.#log.error({ request_id: req.requestId, method: req.method, path, operation, err }, 'request failed')
    }
    if (res.headersSent) {
      res.destroy()
      endSpan(req, 500, { route, caller, code: refusal.code })
      return
    }
    // Thousands of anonymous clients may disconnect during their bodies.
    const isSilent = !caller && !req.complete && (req.destroyed || res.closed)
    const text = JSON.stringify(errorBody(refusal, this.#config.DOCS_BASE_URL))
    for (const [name, value] of Object.entries(refusal.headers ?? {})) res.setHeader(name, value)
    if (refusal.code === 'UNAUTHORIZED' && !res.hasHeader('WWW-Authenticate'))
      res.setHeader('WWW-Authenticate', 'Bearer')
    rejectBody(req, res)
    this.end(req, res, refusal.status, text, {
      route,
      caller,
      level: isSilent ? 'debug' : 'info',
      code: refusal.code,
    })
  }

  /** Writes a JSON response and the log line of the request. */
  end(req: Wire, res: ServerResponse, status: number, text: string | null, entry: RequestLog): void {
    res.statusCode = status
    addContext(req, res, entry)
    if (text !== null) {
      res.setHeader('Content-Type', 'application/json; charset=utf-8')
      res.setHeader('Content-Length', Buffer.byteLength(text))
      res.end(req.method === 'HEAD' ? undefined : text)
    } else res.end()
    this.#logRequest(req, status, entry)
  }

  #logRequest(req: Wire, status: number, entry: RequestLog): void {
    const { route, caller, noted, level = 'info' } = entry
    endSpan(req, status, entry)
    const ms = performance.now() - req.startedAt
    httpRequests.inc({ method: req.method, route, status: String(status) })
    requestDuration.observe({ method: req.method, route, status: String(status) }, ms / 1000)
    this.#log[level](
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

  /** Writes a stream, and the log line of the request at its end. */
  stream(req: Wire, res: Response, result: OperationResult, entry: RequestLog): void {
    const stream = result.stream as NonNullable<OperationResult['stream']>
    // The client has disconnected meanwhile. The end of the stream releases its resources.
    if (res.destroyed) {
      stream.destroy()
      this.#logRequest(req, result.status, entry)
      return
    }
    res.statusCode = result.status
    addContext(req, res, entry)
    res.setHeader('Content-Type', result.contentType as string)
    for (const [name, value] of Object.entries(result.headers ?? {})) res.setHeader(name, value)
    // With the first bytes, if they are available.
    if (stream.readableLength === 0) res.flushHeaders()
    // In place of `pipeline`, which keeps 6 KiB for each open stream.
    stream.on('error', error => {
      if (this.#config.ERROR_LOGS_ENABLED)
        this.#log.error({ request_id: req.requestId, route: entry.route, err: error }, 'response stream failed')
    })
    const abort = () => {
      if (!res.writableEnded) res.destroy()
    }
    stream.once('close', abort)
    res.on('error', abort)
    res.once('close', () => {
      stream.destroy()
      this.#logRequest(req, result.status, entry)
    })
    if (stream.destroyed) abort()
    else stream.pipe(res)
  }
}

/** Adds the context of the request's span to a response to an admin, who may find the trace. */
function addContext({ span }: Wire, res: ServerResponse, { caller }: RequestLog): void {
  if (span && caller && isAdmin(caller) && caller.project_id === null) res.setHeader('traceparent', span.context)
}

/**
 * Ends the span of a request. Requests without a caller are exported by the sampler alone: an anonymous flood that
 * fails must not fill the collector.
 */
function endSpan({ span, method, baseUrl }: Wire, status: number, { route, caller, code }: RequestLog): void {
  if (!span) return
  const full = route.startsWith(baseUrl) ? route : `${baseUrl}${route}`
  span.rename(`${method} ${full}`)
  span.set({ [ATTRIBUTE.route]: full, [ATTRIBUTE.status]: status, [ATTRIBUTE.error]: code })
  if (status >= 500) span.fail(code ?? String(status))
  if (caller) span.end()
  else span.endUnkept()
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
