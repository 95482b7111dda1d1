/**
 * The only client for addresses merged by callers. A host is resolved once, all its addresses are checked, and the
 * connection goes to a checked address: there is no second lookup with a possibly different result.
 */
import { isIP } from 'node:net'
import { buildConnector, FormData, Headers, Pool, fetch as undiciFetch } from 'undici'
import { currentSpan, hostAttributes, type Span, type SpanStart, traceContext, traced } from '../base/telemetry.ts'
import { ATTRIBUTE } from '../base/telemetry-names.ts'
import { isPublic, parseAllowHosts, unwrapHostname } from './allow-hosts.ts'
import { beginHostCall, type HostCall } from './hanging-calls.ts'
import { ACCEPT_ENCODING, type BodyLimits, limitBody } from './limited-body.ts'
import { coalescedLookups, type LookupOptions, type Resolve } from './resolver.ts'
import { withoutTimeouts } from './untimed-fetch.ts'

declare module '../base/services.ts' {
  interface Services {
    egress: Egress
  }
}

export type EgressOptions = {
  /** Comma-separated `host`, `host:port`, `*.suffix`, IP or CIDR that may be reached although not public. */
  allowHosts: string
  resolve: Resolve
  /** Certificate authorities (PEM) in place of the built-in ones. */
  ca?: string
  /** Hosts that receive the trace context, in the syntax of `allowHosts`. */
  propagateHosts?: string
  /** Idle timeout of `fetch`, before and within the response, default 10 min. */
  fetchIdleTimeoutMs?: number
}

export type EgressRequest = {
  url: string
  method: string
  /** Host, connection and framing headers are omitted: they are derived from the URL and the body. */
  headers?: Record<string, string>
  body?: string | Buffer | Uint8Array
  /** Project on whose behalf the request is sent. */
  tenant?: string
  /** Timeout of the whole call with redirects and body, without the wait for a lookup slot. */
  timeoutMs: number
  /** Longest wait for a lookup slot, after which the call fails as `busy`; default unlimited. */
  waitMs?: number
  /** Connect timeout per address, default 10 s. */
  connectTimeoutMs?: number
  maxRedirects: number
  /**
   * `repost`: 301, 302, 307 and 308 repeat method, body and headers, 303 is a failure (webhooks). `standard`: 303, and
   * 301 and 302 after POST, become GET without body. `none`: a redirect is returned as the answer.
   */
  redirectMode: 'repost' | 'standard' | 'none'
  maxBytes: number
  /** Whether a longer body is cut at maxBytes, which drops the connection, instead of failing. */
  truncate?: boolean
  /** Called with each chunk of the body; true ends the body and drops the connection. */
  isEnough?(chunk: Buffer, headers: Record<string, string>): boolean
  /** Headers removed on a redirect to another origin, in addition to the standard credential headers. */
  sensitiveHeaders?: string[]
  signal?: AbortSignal
}

export type EgressFailure =
  | 'dns'
  | 'connect'
  | 'tls'
  | 'timeout'
  | 'busy'
  | 'aborted'
  | 'response_too_large'
  | 'redirects'

/**
 * `answer`: a response with any status. `blocked`: the egress rule refused the hop before its connection was opened;
 * `address` is null if the reason is not an address. `failed`: an error of the network or the receiver; `connect`
 * includes all transport errors without a separate value, and `status` is the status of a refused redirect. Only
 * `repost` fails with `redirects`: in the other modes too many hops are blocked.
 */
export type EgressOutcome =
  | { kind: 'answer'; status: number; headers: Record<string, string>; body: Buffer; url: string }
  | { kind: 'blocked'; url: string; address: string | null; reason: string }
  | { kind: 'failed'; reason: EgressFailure; message: string; status?: number }

/** `tenant`: project on whose behalf the request is sent; `maxBytes`: default 16 MiB. */
export type EgressFetchInit = RequestInit &
  Partial<BodyLimits> & {
    tenant?: string
    /** Whether the caller limits the time of the call, in place of the idle timeout. */
    untimed?: boolean
  }

export type Egress = {
  /** Returns why a URL may not be called, judged without a lookup; null if it may or if that depends on a lookup. */
  refusal(url: string): string | null
  /** Sends a request and follows its redirects. Errors of the network or the receiver are outcomes, not exceptions. */
  request(request: EgressRequest): Promise<EgressOutcome>
  /**
   * `fetch` for libraries, with the same rule. Redirects are not followed: a 3xx is the response. The body streams and
   * is bounded by limitBody. Rejects with EgressBlockedError or RemoteBodyError, otherwise like `fetch`.
   */
  fetch(input: string | URL | Request, init?: EgressFetchInit): Promise<Response>
  /** Closes all connections, including those in use. */
  close(): Promise<void>
}

/** Error of `Egress.fetch` when the egress rule refuses. */
export class EgressBlockedError extends Error {
  readonly url: string
  readonly address: string | null

  constructor(blocked: { url: string; address: string | null; reason: string }) {
    // Without the query, which may contain a key: messages appear in logs and responses.
    super(`Egress to ${blocked.url.replace(/[?#].*$/s, '')} is blocked: ${blocked.reason}`)
    this.name = 'EgressBlockedError'
    this.url = blocked.url
    this.address = blocked.address
  }
}

type Blocked = Extract<EgressOutcome, { kind: 'blocked' }>
type Failed = Extract<EgressOutcome, { kind: 'failed' }>
type Target = { kind: 'target'; url: URL; addresses: string[] }

const DEFAULT_CONNECT_TIMEOUT_MS = 10_000
const DEFAULT_FETCH_IDLE_TIMEOUT_MS = 600_000
const DEFAULT_FETCH_BYTES = 16 * 1024 * 1024
const MAX_TIMEOUT_MS = 2 ** 31 - 1
const POOL_IDLE_MS = 60_000
const POOL_SWEEP_MS = 10_000
/** How long an address that refused a connection is ranked after the other addresses of its host. */
const ADDRESS_PENALTY_MS = 30_000
/** Most bytes of a redirect's body read to keep the connection. */
const REDIRECT_BODY_BYTES = 16 * 1024

const REDIRECT_STATUSES = new Set([301, 302, 303, 307, 308])
const UNSENT_HEADERS = new Set([
  'host',
  'connection',
  'proxy-connection',
  'keep-alive',
  'transfer-encoding',
  'content-length',
  'upgrade',
  'expect',
  'te',
  'trailer',
])
const CREDENTIAL_HEADERS = ['authorization', 'cookie', 'proxy-authorization']

/** Sends requests to addresses that the rule permits. */
class EgressClient implements Egress {
  readonly #allowList: ReturnType<typeof parseAllowHosts>
  readonly #propagateList: ReturnType<typeof parseAllowHosts>
  readonly #lookup: ReturnType<typeof coalescedLookups>
  readonly #pools: Pools

  constructor(options: EgressOptions) {
    this.#allowList = parseAllowHosts(options.allowHosts)
    this.#propagateList = parseAllowHosts(options.propagateHosts ?? '')
    this.#lookup = coalescedLookups(options.resolve)
    this.#pools = new Pools(options)
  }

  /** Checks a URL against the rule and pins it to the current addresses of its host. */
  async #resolveTarget(text: string, base: URL | undefined, caller: LookupOptions): Promise<Target | Blocked | Failed> {
    const url = URL.parse(text, base?.href)
    const blocked = (address: string | null, reason: string): Blocked => ({
      kind: 'blocked',
      url: url?.href ?? text,
      address,
      reason,
    })
    if (!url) return blocked(null, 'the url is not valid')
    if (url.protocol !== 'http:' && url.protocol !== 'https:') return blocked(null, 'only http and https are allowed')
    if (url.username || url.password) return blocked(null, 'the url carries credentials')
    const { host, port } = hostAndPortOf(url)
    let addresses = [host]
    if (!isIP(host)) {
      try {
        addresses = await abortable(this.#lookup(host, caller), caller.signal)
      } catch (error) {
        return failure(error, 'dns')
      }
      if (addresses.length === 0) return { kind: 'failed', reason: 'dns', message: `${host} has no address` }
    }
    if (!this.#allowList.allowsHost(host, port)) {
      const internal = addresses.find(address => !this.#mayReach(address, port))
      if (internal !== undefined) return blocked(internal, `${internal} is not a public address`)
    }
    return { kind: 'target', url, addresses }
  }

  #mayReach(address: string, port: number): boolean {
    const parsed = unwrapHostname(address)
    return parsed !== null && (isPublic(parsed) || this.#allowList.allowsAddress(parsed, port))
  }

  /** Returns why a URL may not be called, judged without a lookup. */
  refusal(text: string): string | null {
    const url = URL.parse(text)
    if (!url) return null
    const { host, port } = hostAndPortOf(url)
    if (this.#allowList.allowsHost(host, port)) return null
    if (isIP(host)) return this.#mayReach(host, port) ? null : `${host} is not a public address`
    return /(^|\.)localhost\.?$/.test(host) && !LOOPBACK.some(address => this.#mayReach(address, port))
      ? `${host} is not a public address`
      : null
  }

  /** Returns the context of the current span for a host that receives it; null for other hosts, and without telemetry. */
  #contextFor(url: URL): string | null {
    const context = traceContext()
    if (context === null) return null
    const { host, port } = hostAndPortOf(url)
    const address = unwrapHostname(host)
    const list = this.#propagateList
    return list.allowsHost(host, port) || (address && list.allowsAddress(address, port)) ? context : null
  }

  /** Sends a request and follows its redirects. */
  request(req: EgressRequest): Promise<EgressOutcome> {
    return currentSpan()?.hasRequests
      ? traced(requestSpan, req, async span => {
          const outcome = await this.#request(req)
          if (outcome.kind === 'answer') noteStatus(span, outcome.status)
          else span?.fail(outcome.kind === 'blocked' ? 'blocked' : outcome.reason)
          return outcome
        })
      : this.#request(req)
  }

  async #request(req: EgressRequest): Promise<EgressOutcome> {
    const deadline = new Deadline(req.timeoutMs, req.waitMs)
    const abort = () => deadline.abort('aborted')
    if (req.signal?.aborted) abort()
    else req.signal?.addEventListener('abort', abort, { once: true })
    try {
      return await this.#followRedirects(req, deadline)
    } finally {
      deadline.clear()
      req.signal?.removeEventListener('abort', abort)
    }
  }

  async #followRedirects(req: EgressRequest, deadline: Deadline): Promise<EgressOutcome> {
    const { signal } = deadline
    const caller = { tenant: req.tenant, signal, onWait: () => deadline.pause(), onStart: () => deadline.resume() }
    let { method, body } = req
    // Response bodies are returned undecoded.
    const headers = filterHeaders(req.headers ?? {})
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', ['accept-encoding', 'identity'])
    let location = req.url
    let from: URL | undefined
    let isPropagated = false
    let isFirstHost = true
    for (let hops = 0; ; hops++) {
      const to = await this.#resolveTarget(location, from, caller)
      // An invalid location in a webhook's redirect is a failure of the receiver, not a violation of the rule.
      if (to.kind === 'blocked' && from && req.redirectMode === 'repost' && !URL.canParse(location, from.href))
        return { kind: 'failed', reason: 'redirects', message: 'redirect location is not a valid URL' }
      if (to.kind !== 'target') return to
      if (from && from.origin !== to.url.origin)
        for (const name of [...CREDENTIAL_HEADERS, ...(req.sensitiveHeaders ?? [])]) headers.delete(name.toLowerCase())

      // A host that a redirect names is no host that the request was meant for.
      isFirstHost &&= !from || from.host === to.url.host
      const context = isFirstHost ? this.#contextFor(to.url) : null
      if (context !== null) headers.set(TRACEPARENT, [TRACEPARENT, context])
      else if (from && isPropagated) headers.delete(TRACEPARENT)
      isPropagated = context !== null

      const hop = await this.#sendHop(to, { ...req, method, body }, headers, signal)
      if (hop.kind !== 'redirect') return hop
      if (req.redirectMode === 'repost' && (hop.status === 303 || hops >= req.maxRedirects)) {
        const message = hop.status === 303 ? 'receiver answered 303' : `more than ${req.maxRedirects} redirects`
        return { kind: 'failed', reason: 'redirects', message, status: hop.status }
      }
      if (hops >= req.maxRedirects) {
        const reason = `more than ${req.maxRedirects} redirects`
        return { kind: 'blocked', url: to.url.href, address: null, reason }
      }
      const becomesGet = hop.status === 303 ? method !== 'HEAD' : hop.status < 303 && method === 'POST'
      if (req.redirectMode === 'standard' && becomesGet) {
        method = 'GET'
        body = undefined
        for (const name of [...headers.keys()]) if (name.startsWith('content-')) headers.delete(name)
      }
      location = hop.location
      from = to.url
    }
  }

  /** Sends one hop. The next address of the host is tried only if no request can have been sent. */
  async #sendHop(
    to: Target,
    req: EgressRequest,
    headers: SentHeaders,
    signal: AbortSignal,
  ): Promise<EgressOutcome | { kind: 'redirect'; status: number; location: string }> {
    const call = await beginHostCall(to.url.host, signal).catch(error => {
      if (!signal.aborted) throw error
      return null
    })
    try {
      return await this.#sendToAddresses(to, req, headers, signal, call)
    } finally {
      call?.end()
    }
  }

  async #sendToAddresses(
    to: Target,
    req: EgressRequest,
    headers: SentHeaders,
    signal: AbortSignal,
    call: HostCall | null,
  ): Promise<EgressOutcome | { kind: 'redirect'; status: number; location: string }> {
    const candidates = this.#pools.candidates(to)
    for (const [index, pool] of candidates.entries()) {
      if (signal.aborted) return failure(signal.reason, 'aborted')
      try {
        const response = await pool.get(req.connectTimeoutMs ?? DEFAULT_CONNECT_TIMEOUT_MS).request({
          path: to.url.pathname + to.url.search,
          method: req.method as 'POST',
          headers: Object.fromEntries(headers.values()),
          body: req.body ?? null,
          signal,
          // Covered by the deadline of the whole call.
          headersTimeout: 0,
          bodyTimeout: 0,
        })
        const { statusCode: status, body } = response
        call?.answered()
        call?.await()
        body.on('error', () => {})
        const location = [response.headers.location].flat()[0]
        if (req.redirectMode !== 'none' && REDIRECT_STATUSES.has(status) && location !== undefined) {
          await body.dump({ limit: REDIRECT_BODY_BYTES, signal })
          return { kind: 'redirect', status, location }
        }
        const answerHeaders = joinHeaderValues(response.headers)
        const received = await readBody(body, req, answerHeaders)
        if (!received) {
          const message = `response body is larger than ${req.maxBytes} bytes`
          return { kind: 'failed', reason: 'response_too_large', message }
        }
        return { kind: 'answer', status, headers: answerHeaders, body: received, url: to.url.href }
      } catch (error) {
        if (signal.aborted) return failure(signal.reason, 'aborted')
        if (!isConnectError(error)) return failure(error, 'connect')
        pool.penalize()
        if (index === candidates.length - 1) return failure(error, 'connect')
      }
    }
    return { kind: 'failed', reason: 'aborted', message: 'the egress client is closed' }
  }

  /** Sends a request of a library. */
  fetch(input: string | URL | Request, init: EgressFetchInit = {}): Promise<Response> {
    if (!currentSpan()?.hasRequests) return this.#fetch(input, init)
    const { url, method } = input instanceof Request ? input : { url: String(input), method: init.method ?? 'GET' }
    return traced(requestSpan, { url, method }, async span => {
      const response = await this.#fetch(input, init)
      noteStatus(span, response.status)
      return response
    })
  }

  async #fetch(
    input: string | URL | Request,
    { tenant, maxBytes = DEFAULT_FETCH_BYTES, maxValues, untimed = false, ...init }: EgressFetchInit = {},
  ): Promise<Response> {
    const merged: RequestInit =
      input instanceof Request
        ? {
            method: input.method,
            headers: input.headers,
            body: input.body,
            signal: input.signal,
            ...(input.body && { duplex: 'half' }),
            ...init,
          }
        : init
    const signal = merged.signal ?? undefined
    signal?.throwIfAborted()
    const to = await this.#resolveTarget(input instanceof Request ? input.url : String(input), undefined, {
      tenant,
      signal,
    })
    signal?.throwIfAborted()
    if (to.kind === 'blocked') throw new EgressBlockedError(to)
    if (to.kind === 'failed') throw new TypeError('fetch failed', { cause: new Error(to.message) })

    const headers = new Headers(merged.headers as Record<string, string>)
    headers.delete('host')
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', ACCEPT_ENCODING)
    const context = this.#contextFor(to.url)
    if (context !== null) headers.set(TRACEPARENT, context)
    const body = merged.body instanceof globalThis.FormData ? toUndiciFormData(merged.body) : merged.body
    const isRepeatable = body == null || typeof body === 'string' || body instanceof Uint8Array
    const candidates = this.#pools.candidates(to)
    const call = await beginHostCall(to.url.host, signal)
    for (const [index, pool] of candidates.entries()) {
      try {
        const response = await undiciFetch(to.url, {
          ...(merged as object),
          headers,
          body: body as string,
          redirect: 'manual',
          dispatcher: untimed
            ? withoutTimeouts(pool.get(DEFAULT_CONNECT_TIMEOUT_MS))
            : pool.get(DEFAULT_CONNECT_TIMEOUT_MS),
        })
        call?.answered()
        return limitBody(response as unknown as Response, { maxBytes, maxValues }, call)
      } catch (error) {
        const isRefused = error instanceof Error && isConnectError(error.cause)
        if (isRefused) pool.penalize()
        if (!isRefused || !isRepeatable || index === candidates.length - 1) {
          call?.end()
          throw error
        }
      }
    }
    call?.end()
    throw new TypeError('fetch failed', { cause: new Error('the egress client is closed') })
  }

  /** Closes all connections. */
  close(): Promise<void> {
    return this.#pools.close()
  }
}

/**
 * Opens the egress client. Its functions need no receiver: libraries get `fetch` alone.
 * @throws Error for an invalid entry of `allowHosts`
 */
export function createEgress(options: EgressOptions): Egress {
  const client = new EgressClient(options)
  return {
    refusal: url => client.refusal(url),
    request: request => client.request(request),
    fetch: (input, init) => client.fetch(input, init),
    close: () => client.close(),
  }
}

const TRACEPARENT = 'traceparent'

/** The span of a request: host and method, not its path, which may contain values of callers. */
const requestSpan = ({ url, method }: Pick<EgressRequest, 'url' | 'method'>): SpanStart => ({
  name: method.toUpperCase(),
  kind: 'client',
  attributes: { [ATTRIBUTE.method]: method.toUpperCase(), ...hostAttributes(url) },
})

function noteStatus(span: Span | null, status: number): void {
  span?.set({ [ATTRIBUTE.status]: status })
  if (status >= 400) span?.fail(String(status))
}

/** Addresses of `localhost` (RFC 6761). */
const LOOPBACK = ['127.0.0.1', '::1']

const hostAndPortOf = (url: URL): { host: string; port: number } => ({
  host: url.hostname.replace(/^\[|\]$/g, ''),
  port: Number(url.port) || (url.protocol === 'https:' ? 443 : 80),
})

const ABORT_MESSAGES = {
  aborted: 'call aborted',
  timeout: 'call timed out',
  busy: 'too many concurrent name lookups of the project',
}

/** Reason with which the signal of a request is aborted. */
class EgressAbort extends Error {
  readonly reason: keyof typeof ABORT_MESSAGES

  constructor(reason: keyof typeof ABORT_MESSAGES) {
    super(ABORT_MESSAGES[reason])
    this.reason = reason
  }
}

/** Timeout of a call. It is paused while the call waits for a lookup slot, which has a separate limit. */
class Deadline {
  readonly #controller = new AbortController()
  #remainingMs: number
  #remainingWaitMs: number
  #since = performance.now()
  #timer: NodeJS.Timeout | undefined

  constructor(timeoutMs: number, waitMs = Number.POSITIVE_INFINITY) {
    this.#remainingMs = timeoutMs
    this.#remainingWaitMs = waitMs
    this.#arm('timeout', timeoutMs)
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  pause(): void {
    this.#remainingMs -= performance.now() - this.#since
    this.#arm('busy', this.#remainingWaitMs)
  }

  resume(): void {
    this.#remainingWaitMs -= performance.now() - this.#since
    this.#arm('timeout', this.#remainingMs)
  }

  abort(reason: keyof typeof ABORT_MESSAGES): void {
    this.#controller.abort(new EgressAbort(reason))
  }

  clear(): void {
    clearTimeout(this.#timer)
  }

  #arm(reason: 'timeout' | 'busy', ms: number): void {
    clearTimeout(this.#timer)
    this.#since = performance.now()
    this.#timer = setTimeout(() => this.abort(reason), Math.min(Math.max(ms, 0), MAX_TIMEOUT_MS))
  }
}

function failure(error: unknown, otherwise: EgressFailure): Failed {
  const message = error instanceof Error ? error.message : String(error)
  if (error instanceof EgressAbort) return { kind: 'failed', reason: error.reason, message }
  const code = codeOf(error)
  if (/^(ERR_TLS|ERR_SSL|CERT_|UNABLE_TO_|DEPTH_ZERO|SELF_SIGNED|HOSTNAME_MISMATCH|INVALID_CA|EPROTO)/.test(code))
    return { kind: 'failed', reason: 'tls', message }
  if (code === 'UND_ERR_HEADERS_OVERFLOW') return { kind: 'failed', reason: 'response_too_large', message }
  if (code === 'UND_ERR_DESTROYED' || code === 'UND_ERR_CLOSED') return { kind: 'failed', reason: 'aborted', message }
  return { kind: 'failed', reason: otherwise, message }
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : ''
}

/** Whether no connection was established, so that no request can have been sent. */
function isConnectError(error: unknown): boolean {
  if (codeOf(error) === 'UND_ERR_CONNECT_TIMEOUT') return true
  return error instanceof Error && 'syscall' in error && error.syscall === 'connect'
}

/** Returns the promise, rejected with the reason of the signal if that is aborted first. */
function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason)
    if (signal.aborted) abort()
    signal.addEventListener('abort', abort, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort))
  })
}

/** Headers by lower-case name, with the name as sent. */
type SentHeaders = Map<string, [string, string]>

function filterHeaders(headers: Record<string, string>): SentHeaders {
  const sent: SentHeaders = new Map()
  for (const [name, value] of Object.entries(headers)) {
    const lower = name.toLowerCase()
    if (!UNSENT_HEADERS.has(lower)) sent.set(lower, [name, value])
  }
  return sent
}

function joinHeaderValues(headers: Record<string, string | string[] | undefined>): Record<string, string> {
  const single: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers))
    if (value !== undefined) single[name] = Array.isArray(value) ? value.join(', ') : value
  return single
}

/**
 * Reads the body up to maxBytes, null if it is longer and must not be truncated. Leaving the loop early drops the
 * connection.
 */
async function readBody(
  body: AsyncIterable<Buffer>,
  req: EgressRequest,
  headers: Record<string, string>,
): Promise<Buffer | null> {
  const chunks: Buffer[] = []
  let remaining = req.maxBytes
  for await (const chunk of body) {
    if (chunk.length > remaining && !req.truncate) return null
    chunks.push(chunk.length > remaining ? chunk.subarray(0, remaining) : chunk)
    remaining -= chunk.length
    if ((req.truncate && remaining <= 0) || req.isEnough?.(chunk, headers)) break
  }
  return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)
}

/** Copies a form into undici's own FormData class, the only one it accepts; the parts are the same objects. */
function toUndiciFormData(form: globalThis.FormData): FormData {
  const copy = new FormData()
  for (const [name, value] of form as Iterable<[string, string | File]>) {
    if (typeof value === 'string') copy.append(name, value)
    else copy.append(name, value, value.name)
  }
  return copy
}

type PinnedPool = { get(connectTimeoutMs: number): Pool; penalize(): void }

/** Keep-alive connections, with one pool per origin and pinned address. */
class Pools {
  readonly #options: EgressOptions
  readonly #pools = new Map<string, { pool: Pool; usedAt: number }>()
  /** Time until which an address of an origin counts as unreachable. */
  readonly #penalties = new Map<string, number>()
  #sweptAt = performance.now()
  #closed = false

  constructor(options: EgressOptions) {
    this.#options = options
  }

  /**
   * Returns the addresses to try: connected ones first, then in the resolver's order, recently unreachable ones last.
   */
  candidates({ url, addresses }: Target): PinnedPool[] {
    if (this.#closed) return []
    this.#sweep()
    const now = performance.now()
    const rank = (address: string) => {
      const key = `${url.origin} ${address}`
      if ((this.#penalties.get(key) ?? 0) > now) return 2
      return this.#pools.has(`${key} ${DEFAULT_CONNECT_TIMEOUT_MS}`) ? 0 : 1
    }
    const ordered = addresses.length > 1 ? addresses.toSorted((a, b) => rank(a) - rank(b)) : addresses
    return ordered.map(address => ({
      get: connectTimeoutMs => this.#get(url.origin, address, connectTimeoutMs),
      penalize: () => this.#penalties.set(`${url.origin} ${address}`, performance.now() + ADDRESS_PENALTY_MS),
    }))
  }

  #get(origin: string, address: string, connectTimeoutMs: number): Pool {
    const key = `${origin} ${address} ${connectTimeoutMs}`
    const now = performance.now()
    const existing = this.#pools.get(key)
    if (existing) {
      existing.usedAt = now
      return existing.pool
    }
    const { ca, fetchIdleTimeoutMs = DEFAULT_FETCH_IDLE_TIMEOUT_MS } = this.#options
    const connect = buildConnector({
      timeout: connectTimeoutMs,
      allowH2: false,
      autoSelectFamily: false,
      ...(ca && { ca }),
    })
    const pool = new Pool(origin, {
      // With an address as host name there is no lookup; the certificate is still verified against the host of the URL.
      connect: (options, callback) => connect({ ...options, hostname: address }, callback),
      allowH2: false,
      headersTimeout: fetchIdleTimeoutMs,
      bodyTimeout: fetchIdleTimeoutMs,
      keepAliveMaxTimeout: POOL_IDLE_MS,
    })
    this.#pools.set(key, { pool, usedAt: now })
    return pool
  }

  #sweep(): void {
    const now = performance.now()
    if (now - this.#sweptAt < POOL_SWEEP_MS) return
    this.#sweptAt = now
    for (const [key, { pool, usedAt }] of this.#pools) {
      if (now - usedAt < POOL_IDLE_MS || pool.stats.size > 0) continue
      this.#pools.delete(key)
      pool.close().catch(() => {})
    }
    for (const [key, until] of this.#penalties) if (until <= now) this.#penalties.delete(key)
  }

  async close(): Promise<void> {
    this.#closed = true
    const open = [...this.#pools.values()]
    this.#pools.clear()
    await Promise.all(open.map(({ pool }) => pool.destroy()))
  }
}
