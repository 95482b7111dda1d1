import type { Request, Response } from 'express'
import passport from 'passport'
import { Strategy as BearerStrategy } from 'passport-http-bearer'
import type { Call, RequestFacts } from '../api/call.ts'
import type { Operation } from '../api/operation.ts'
import { RequestCount } from '../api/request-count.ts'
import { timeIn } from '../base/clock.ts'
import { AppError } from '../base/errors.ts'
import { cellOfToken, isToken } from '../base/ids.ts'
import type { Services } from '../base/services.ts'
import type { Span, SpanStart } from '../base/telemetry.ts'
import { ATTRIBUTE, MUSTER } from '../base/telemetry-names.ts'
import type { Caller } from '../iam/caller.ts'
import { authentication, type PresentedCredential, type Proof } from '../invoke/hooks.ts'
import { toRefusal } from '../invoke/refusal-mapping.ts'
import { requireCell } from '../services/cell.ts'
import { type Cells, servicesOfId } from '../services/cells.ts'
import { CLIENT_GONE } from './body.ts'

/** A request with the fields set by the first middleware. */
export type Wire = Request & { requestId: string; startedAt: number; span?: Span | null }

/** The span of a request. A context that the client sends is its parent only if trusted: a tenant decides no export. */
export const serverSpan = ({ req, config }: { req: Wire; config: Services['config'] }): SpanStart => {
  const incoming = req.headers.traceparent
  const sent = typeof incoming === 'string' ? incoming : null
  return {
    name: req.method,
    kind: 'server',
    unit: true,
    attributes: { [ATTRIBUTE.method]: req.method },
    shared: { [MUSTER.request]: req.requestId },
    request: req.headers['x-request-id'] === req.requestId ? undefined : req.requestId,
    incoming: { context: sent, trusted: config.OTEL_TRUST_INCOMING },
  }
}

const closedSignals = new WeakMap<Response, AbortSignal>()

/**
 * Returns a signal that is aborted when the client disconnects. Created lazily, because few operations use it and a
 * signal costs more than binding a query.
 */
export function closedSignal(res: Response): AbortSignal {
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

/** Returns the facts of a request that do not depend on its operation. */
export const requestFacts = (services: Services, req: Wire, res: Response): RequestFacts => ({
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

/** Returns the call that a request makes. */
export function requestCall(req: Wire, request: RequestFacts, identify: Call['identify']): Call {
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
    request,
  }
}

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

/** Resolves the callers of requests by their credentials. */
export class CallerResolver {
  readonly #services: Services
  readonly #bearer = bearerTokenReader()

  constructor(services: Services) {
    this.#services = services
  }

  /** Returns the services of the cell of a request outside the operations: by its credential or its path, the first otherwise. */
  async servicesOf(req: Request): Promise<Services> {
    const { cells } = this.#services
    if (!cells) return this.#services
    const token = this.#bearer(req) ?? ''
    const number = cellOfToken(token)
    if (isToken(token) && cells.sharing(number).length > 1) {
      const caller = await this.resolve(req)
      if (caller?.project_id) return cells.ofProject(caller.project_id)
    }
    const ids = Object.values(req.params).flat()
    return cells.afterMoves(() => (number === 0 ? cells.holding(ids) : cells.numbered(number)))
  }

  /** Returns the caller of the Authorization header; null without a valid credential. Raises CELL_UNAVAILABLE. */
  async resolve(req: Request): Promise<Caller | null> {
    const bound = DPOP.exec(req.headers.authorization ?? '')?.[1]
    const token = bound ?? this.#bearer(req)
    return this.#authenticate(token, {
      ip: req.ip ?? null,
      origin: req.headers.origin,
      ...(bound !== undefined && { proof: proofOf(req) }),
    })
  }

  /** Returns a resolver by a ticket, which is consumed once and then stands for its credential. */
  byTicket({ ticket: consume, param }: Operation, req: Request, ticket: string): () => Promise<Caller | null> {
    const itemId = String(req.params[param as string])
    let token: Promise<string | null> | undefined
    return async () => {
      token ??= this.#afterMoves(async () =>
        consume ? consume(await servicesOfId(this.#services, itemId), ticket, itemId) : null,
      )
      return this.#authenticate(await token, { ip: req.ip ?? null, origin: req.headers.origin, byTicket: true })
    }
  }

  async #authenticate(token: string | null, presented: PresentedCredential): Promise<Caller | null> {
    if (token === null) return null
    const { cells } = this.#services
    return cells && isToken(token)
      ? cells.afterMoves(() => this.#authenticateInCells(cells, token, presented))
      : this.#authenticateIn(cells?.home ?? this.#services, token, presented)
  }

  /** Authenticates a token whose project may have left the cell that made it. Raises CELL_UNAVAILABLE. */
  async #authenticateInCells(cells: Cells, token: string, presented: PresentedCredential): Promise<Caller | null> {
    const number = cellOfToken(token)
    let missing: unknown
    for (const [index, cell] of cells.sharing(number).entries())
      try {
        const caller = await this.#authenticateIn(requireCell(cell), token, presented)
        // Only keys of projects move: other cells have copies of those without, which may be late.
        if (caller && (index === 0 || caller.project_id !== null)) return caller
      } catch (error) {
        if (!(error instanceof AppError) || error.code !== 'CELL_UNAVAILABLE') throw error
        missing ??= error
      }
    if (missing) throw missing
    cells.requireSettled(number)
    return null
  }

  /** Runs work that finds the cell of a request, which waits while the cell is moved. */
  async #afterMoves<T>(work: () => T | Promise<T>): Promise<T> {
    const { cells } = this.#services
    return cells ? cells.afterMoves(work) : work()
  }

  async #authenticateIn(services: Services, token: string, presented: PresentedCredential): Promise<Caller | null> {
    const authenticate = authentication.only()
    if (!authenticate) return null
    try {
      return await authenticate(services, token, presented)
    } catch (error) {
      throw toRefusal(error, services) ?? error
    }
  }
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
