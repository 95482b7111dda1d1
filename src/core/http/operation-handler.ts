import type { Response } from 'express'
import type { Call, RequestFacts } from '../api/call.ts'
import { deprecationDates } from '../api/deprecation.ts'
import type { Operation } from '../api/operation.ts'
import { withTenant } from '../db/tenant-context.ts'
import type { Invocation } from '../invoke/invocation.ts'
import { executeInvocation } from '../invoke/invoke.ts'
import { openPlaced } from '../invoke/place.ts'
import { inCellOf } from '../services/cell.ts'
import { countAnonymous } from './anonymous-bodies.ts'
import { anonymousBodyError, jsonReader, UNKNOWN_BODY_BYTES } from './body.ts'
import type { HttpParts } from './mount-handler.ts'
import { closedSignal, requestCall, requestFacts, type Wire } from './requests.ts'
import { limitBodyTime } from './server.ts'

/** Maximum age of a caller resolved before the body was read; after a slower body it is resolved again. */
const IDENTITY_MS = 1000

const readAnonymous = jsonReader(UNKNOWN_BODY_BYTES)

/** Serves the requests of an operation. */
export class OperationHandler {
  readonly #http: HttpParts
  readonly #operation: Operation
  readonly #read: ReturnType<typeof jsonReader>
  readonly #callerMs: number
  readonly #anonymousMs: number
  readonly #deprecationDate: ReturnType<typeof deprecationDates>

  constructor(http: HttpParts, operation: Operation) {
    const { config } = http.services
    const limit = operation.gate === 'public' ? UNKNOWN_BODY_BYTES : config.HTTP_JSON_LIMIT_BYTES
    this.#http = http
    this.#operation = operation
    this.#read = jsonReader(operation.bodyLimit?.(config) ?? limit)
    this.#callerMs = operation.receive ? config.UPLOAD_TIMEOUT_MS : config.HTTP_BODY_TIMEOUT_MS
    this.#deprecationDate = deprecationDates(operation)
    this.#anonymousMs = operation.bodyTimeMs?.(config) ?? config.HTTP_ANONYMOUS_BODY_TIMEOUT_MS
  }

  /** Answers a request. Errors are answers too. */
  async handle(req: Wire, res: Response): Promise<void> {
    const operation = this.#operation
    const { services, responses } = this.#http
    let invocation: Invocation | undefined
    try {
      const request = requestFacts(services, req, res)
      const identify = await this.#readBody(req, res, request)
      if (this.#deprecationDate) this.#announce(this.#deprecationDate(req), res)
      invocation = await openPlaced(services, operation, requestCall(req, request, identify))
      const result = await executeInvocation(invocation)
      if (result.stream && req.method !== 'HEAD') {
        // Reads of a stream count as work of its project, and may wait without a limit.
        const tenant = { ...invocation.tenancy, patienceMs: Number.POSITIVE_INFINITY }
        const { caller, services: placed } = invocation
        return inCellOf(placed, () =>
          withTenant(tenant, () => responses.stream(req, res, result, { route: operation.path, caller })),
        )
      }
      result.stream?.destroy()
      if (result.contentType) res.setHeader('Content-Type', result.contentType)
      for (const [name, value] of Object.entries(result.headers ?? {})) res.setHeader(name, value)
      const isEmpty = result.body === undefined || result.status === 204 || result.status === 304
      const text = isEmpty ? null : (result.text ?? JSON.stringify(result.body))
      responses.end(req, res, result.status, text, { route: operation.path, caller: invocation.caller })
    } catch (error) {
      responses.error(error, req, res, { route: operation.path, operation: operation.id, caller: invocation?.caller })
    }
  }

  /** Adds the header fields of RFC 9745 to a response. */
  #announce(date: string | null, res: Response): void {
    if (date === null) return
    res.setHeader('Deprecation', `@${Date.parse(date) / 1000}`)
    res.setHeader('Link', `<${this.#http.services.config.DOCS_BASE_URL}/changes>; rel="deprecation"; type="text/html"`)
  }

  /**
   * Reads the body and returns the function that resolves the caller. Counts the request before: a body that is refused is a
   * request as well. Without a credential, reads only a small body, so that its problems can be reported.
   */
  async #readBody(req: Wire, res: Response, request: RequestFacts): Promise<Call['identify']> {
    const operation = this.#operation
    const { services, callers } = this.#http
    const isPublic = operation.gate === 'public'
    const { ticket } = req.query
    if (operation.ticket && typeof ticket === 'string') return callers.byTicket(operation, req, ticket)
    const identify = () => callers.resolve(req)
    if (operation.method === 'get') return identify
    const startedAt = performance.now()
    const caller = isPublic ? null : await identify()
    if (caller) await request.count?.in(caller, caller.project_id)
    const refusal = isPublic || caller ? null : anonymousBodyError(req)
    if (refusal && (operation.receive || refusal.code !== 'UNAUTHORIZED')) throw refusal
    const totalMs = caller ? this.#callerMs : this.#anonymousMs
    limitBodyTime(req, { totalMs, idleMs: Math.min(services.config.HTTP_IDLE_TIMEOUT_MS, totalMs) })
    if (!operation.receive) {
      const reader = refusal ? readAnonymous : this.#read
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
}
