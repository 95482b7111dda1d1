/**
 * The only way out to addresses that callers give. A host is resolved once, every address of it is checked, and the
 * connection goes to a checked address: there is no second lookup that could answer differently.
 */
import { isIP } from 'node:net'
import { buildConnector, FormData, Headers, Pool, fetch as undiciFetch } from 'undici'
import { isPublic, parseAllowHosts, unwrapHostname } from './allow-hosts.ts'
import { ACCEPT_ENCODING, type BodyLimits, limitBody } from './limited-body.ts'
import { coalescedLookups, type LookupOptions, type Resolve } from './resolver.ts'

export type EgressOptions = {
  /** comma list of `host`, `host:port`, `*.suffix`, IP or CIDR that may be reached although not public */
  allowHosts: string
  resolve: Resolve
  /** certificate authorities (PEM) instead of the built-in ones */
  ca?: string
  /** longest silence of a server during `fetch`, before and between parts of its answer; default 10 min */
  fetchIdleTimeoutMs?: number
}

export type EgressRequest = {
  url: string
  method: string
  /** Host, connection and framing headers are left out: they follow from the url and the body. */
  headers?: Record<string, string>
  body?: string | Buffer | Uint8Array
  /** the project on whose behalf it is sent */
  tenant?: string
  /** for the whole call, redirects and body included; not for waiting until a name may be resolved */
  timeoutMs: number
  /** Longest such wait, after which the call fails as `busy`; default without end. */
  waitMs?: number
  /** default 10 s, for each address tried */
  connectTimeoutMs?: number
  maxRedirects: number
  /**
   * `repost`: 301, 302, 307 and 308 repeat method, body and headers, 303 is a failure (webhooks). `standard`: 303, and 301
   * and 302 after POST, become GET without body. `none`: a redirect is the answer.
   */
  redirectMode: 'repost' | 'standard' | 'none'
  maxBytes: number
  /** A longer body is cut at maxBytes and the connection dropped, instead of failing. */
  truncate?: boolean
  /** Sees the body of an answer as it comes; true ends it there, and the connection with it. */
  isEnough?(chunk: Buffer, headers: Record<string, string>): boolean
  /** header names that do not follow a redirect to another origin, beside the standard credential headers */
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
 * `answer`: any status. `blocked`: the egress rule refused, before a connection to that hop was opened; `address` is null
 * when it was not about an address. `failed`: what the network or the receiver did, `connect` being every transport error
 * without a name of its own; `status` is the refused redirect's. Only `repost` fails with `redirects`: the other modes
 * count too many hops as blocked.
 */
export type EgressOutcome =
  | { kind: 'answer'; status: number; headers: Record<string, string>; body: Buffer; url: string }
  | { kind: 'blocked'; url: string; address: string | null; reason: string }
  | { kind: 'failed'; reason: EgressFailure; message: string; status?: number }

/** `tenant`: the project on whose behalf it is sent; `maxBytes` is 16 MiB by default. */
export type EgressFetchInit = RequestInit & Partial<BodyLimits> & { tenant?: string }

export type Egress = {
  /**
   * Why an address may not be called, as far as it says so itself; null where it may, or where its name says it: names are
   * resolved when they are called, and not before.
   */
  refusal(url: string): string | null
  /** One request with redirects followed by hand. Never throws for what the network or the receiver does. */
  request(request: EgressRequest): Promise<EgressOutcome>
  /**
   * `fetch` for libraries: the same address rule, no redirect followed (a 3xx is the response), the body streams.
   * The body is bounded by limitBody. Rejects with EgressBlockedError or RemoteBodyError, else as `fetch` does.
   */
  fetch(input: string | URL | Request, init?: EgressFetchInit): Promise<Response>
  /** Ends every connection, those in use too. */
  close(): Promise<void>
}

/** What `Egress.fetch` rejects with when the rule refuses. */
export class EgressBlockedError extends Error {
  readonly url: string
  readonly address: string | null

  constructor(blocked: { url: string; address: string | null; reason: string }) {
    // Without its query, which may carry a key: messages end up in logs and answers.
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
/** How long an address that refused a connection is tried after the others of its host. */
const ADDRESS_PENALTY_MS = 30_000
/** More of a redirect's body is not read to keep the connection. */
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

/**
 * Opens the egress client.
 * @throws Error for an entry of `allowHosts` that is none of the accepted forms
 */
export function createEgress(options: EgressOptions): Egress {
  const allowed = parseAllowHosts(options.allowHosts)
  const lookup = coalescedLookups(options.resolve)
  const pools = new Pools(options)

  /** Checks a URL by the rule and pins it to the addresses its host has now. */
  async function target(
    text: string,
    base: URL | undefined,
    caller: LookupOptions,
  ): Promise<Target | Blocked | Failed> {
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
    const { host, port } = placeOf(url)
    let addresses = [host]
    if (!isIP(host)) {
      try {
        addresses = await abortable(lookup(host, caller), caller.signal)
      } catch (error) {
        return failure(error, 'dns')
      }
      if (addresses.length === 0) return { kind: 'failed', reason: 'dns', message: `${host} has no address` }
    }
    if (!allowed.host(host, port)) {
      const internal = addresses.find(address => !mayReach(address, port))
      if (internal !== undefined) return blocked(internal, `${internal} is not a public address`)
    }
    return { kind: 'target', url, addresses }
  }

  function mayReach(address: string, port: number): boolean {
    const parsed = unwrapHostname(address)
    return parsed !== null && (isPublic(parsed) || allowed.address(parsed, port))
  }

  function refusal(text: string): string | null {
    const url = URL.parse(text)
    if (!url) return null
    const { host, port } = placeOf(url)
    if (allowed.host(host, port)) return null
    if (isIP(host)) return mayReach(host, port) ? null : `${host} is not a public address`
    return /(^|\.)localhost\.?$/.test(host) && !LOOPBACK.some(address => mayReach(address, port))
      ? `${host} is not a public address`
      : null
  }

  async function request(req: EgressRequest): Promise<EgressOutcome> {
    const deadline = new Deadline(req.timeoutMs, req.waitMs)
    const abort = () => deadline.abort('aborted')
    if (req.signal?.aborted) abort()
    else req.signal?.addEventListener('abort', abort, { once: true })
    try {
      return await follow(req, deadline)
    } finally {
      deadline.clear()
      req.signal?.removeEventListener('abort', abort)
    }
  }

  async function follow(req: EgressRequest, deadline: Deadline): Promise<EgressOutcome> {
    const { signal } = deadline
    const caller = { tenant: req.tenant, signal, onWait: () => deadline.pause(), onStart: () => deadline.resume() }
    let { method, body } = req
    // Bodies are handed on as they come, never decoded.
    const headers = sendable(req.headers ?? {})
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', ['accept-encoding', 'identity'])
    let location = req.url
    let from: URL | undefined
    for (let hops = 0; ; hops++) {
      const to = await target(location, from, caller)
      // A webhook whose receiver answers an unusable location failed; the rule was not violated.
      if (to.kind === 'blocked' && from && req.redirectMode === 'repost' && !URL.canParse(location, from.href))
        return { kind: 'failed', reason: 'redirects', message: 'the redirect names no valid url' }
      if (to.kind !== 'target') return to
      if (from && from.origin !== to.url.origin)
        for (const name of [...CREDENTIAL_HEADERS, ...(req.sensitiveHeaders ?? [])]) headers.delete(name.toLowerCase())

      const hop = await send(to, { ...req, method, body }, headers, signal)
      if (hop.kind !== 'redirect') return hop
      if (req.redirectMode === 'repost' && (hop.status === 303 || hops >= req.maxRedirects)) {
        const message = hop.status === 303 ? 'the receiver answered 303' : `more than ${req.maxRedirects} redirects`
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

  /** One hop. Another address of the host is tried only while no request can have been sent. */
  async function send(
    to: Target,
    req: EgressRequest,
    headers: SentHeaders,
    signal: AbortSignal,
  ): Promise<EgressOutcome | { kind: 'redirect'; status: number; location: string }> {
    const candidates = pools.candidates(to)
    for (const [index, pool] of candidates.entries()) {
      if (signal.aborted) return failure(signal.reason, 'aborted')
      try {
        const response = await pool.get(req.connectTimeoutMs ?? DEFAULT_CONNECT_TIMEOUT_MS).request({
          path: to.url.pathname + to.url.search,
          method: req.method as 'POST',
          headers: Object.fromEntries(headers.values()),
          body: req.body ?? null,
          signal,
          // The deadline of the whole call covers both.
          headersTimeout: 0,
          bodyTimeout: 0,
        })
        const { statusCode: status, body } = response
        body.on('error', () => {})
        const location = [response.headers.location].flat()[0]
        if (req.redirectMode !== 'none' && REDIRECT_STATUSES.has(status) && location !== undefined) {
          await body.dump({ limit: REDIRECT_BODY_BYTES, signal })
          return { kind: 'redirect', status, location }
        }
        const answerHeaders = flat(response.headers)
        const received = await read(body, req, answerHeaders)
        if (!received) {
          const message = `the response body is larger than ${req.maxBytes} bytes`
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

  async function egressFetch(
    input: string | URL | Request,
    { tenant, maxBytes = DEFAULT_FETCH_BYTES, maxValues, ...init }: EgressFetchInit = {},
  ): Promise<Response> {
    const given: RequestInit =
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
    const signal = given.signal ?? undefined
    signal?.throwIfAborted()
    const to = await target(input instanceof Request ? input.url : String(input), undefined, {
      tenant,
      signal,
    })
    signal?.throwIfAborted()
    if (to.kind === 'blocked') throw new EgressBlockedError(to)
    if (to.kind === 'failed') throw new TypeError('fetch failed', { cause: new Error(to.message) })

    const headers = new Headers(given.headers as Record<string, string>)
    headers.delete('host')
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', ACCEPT_ENCODING)
    const body = given.body instanceof globalThis.FormData ? ownFormData(given.body) : given.body
    const repeatable = body == null || typeof body === 'string' || body instanceof Uint8Array
    const candidates = pools.candidates(to)
    for (const [index, pool] of candidates.entries()) {
      try {
        const response = await undiciFetch(to.url, {
          ...(given as object),
          headers,
          body: body as string,
          redirect: 'manual',
          dispatcher: pool.get(DEFAULT_CONNECT_TIMEOUT_MS),
        })
        return limitBody(response as unknown as Response, { maxBytes, maxValues })
      } catch (error) {
        const refused = error instanceof Error && isConnectError(error.cause)
        if (refused) pool.penalize()
        if (!refused || !repeatable || index === candidates.length - 1) throw error
      }
    }
    throw new TypeError('fetch failed', { cause: new Error('the egress client is closed') })
  }

  return { refusal, request, fetch: egressFetch, close: () => pools.close() }
}

/** What `localhost` stands for (RFC 6761). */
const LOOPBACK = ['127.0.0.1', '::1']

const placeOf = (url: URL): { host: string; port: number } => ({
  host: url.hostname.replace(/^\[|\]$/g, ''),
  port: Number(url.port) || (url.protocol === 'https:' ? 443 : 80),
})

const ENDINGS = {
  aborted: 'the call was aborted',
  timeout: 'the call took too long',
  busy: 'too many names of the project were being resolved',
}

/** Why the signal of a request fired. */
class EgressAbort extends Error {
  readonly reason: keyof typeof ENDINGS

  constructor(reason: keyof typeof ENDINGS) {
    super(ENDINGS[reason])
    this.reason = reason
  }
}

/** The time limit of a call. It stands still while the call waits for its turn, which has a limit of its own. */
class Deadline {
  readonly #controller = new AbortController()
  #left: number
  #wait: number
  #since = performance.now()
  #timer: NodeJS.Timeout | undefined

  constructor(timeoutMs: number, waitMs = Number.POSITIVE_INFINITY) {
    this.#left = timeoutMs
    this.#wait = waitMs
    this.#arm('timeout', timeoutMs)
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  pause(): void {
    this.#left -= performance.now() - this.#since
    this.#arm('busy', this.#wait)
  }

  resume(): void {
    this.#wait -= performance.now() - this.#since
    this.#arm('timeout', this.#left)
  }

  abort(reason: keyof typeof ENDINGS): void {
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

/** Whether no connection came to be, so that nothing can have been sent. */
function isConnectError(error: unknown): boolean {
  if (codeOf(error) === 'UND_ERR_CONNECT_TIMEOUT') return true
  return error instanceof Error && 'syscall' in error && error.syscall === 'connect'
}

/** The promise, or the signal's reason when that comes first. */
function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason)
    if (signal.aborted) abort()
    signal.addEventListener('abort', abort, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort))
  })
}

/** Headers by their names in lower case, with the names as they are sent. */
type SentHeaders = Map<string, [string, string]>

function sendable(headers: Record<string, string>): SentHeaders {
  const sent: SentHeaders = new Map()
  for (const [name, value] of Object.entries(headers)) {
    const lower = name.toLowerCase()
    if (!UNSENT_HEADERS.has(lower)) sent.set(lower, [name, value])
  }
  return sent
}

function flat(headers: Record<string, string | string[] | undefined>): Record<string, string> {
  const single: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers))
    if (value !== undefined) single[name] = Array.isArray(value) ? value.join(', ') : value
  return single
}

/** The body up to maxBytes; null when it is longer and may not be cut. Leaving the loop early drops the connection. */
async function read(
  body: AsyncIterable<Buffer>,
  req: EgressRequest,
  headers: Record<string, string>,
): Promise<Buffer | null> {
  const chunks: Buffer[] = []
  let room = req.maxBytes
  for await (const chunk of body) {
    if (chunk.length > room && !req.truncate) return null
    chunks.push(chunk.length > room ? chunk.subarray(0, room) : chunk)
    room -= chunk.length
    if ((req.truncate && room <= 0) || req.isEnough?.(chunk, headers)) break
  }
  return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)
}

/** undici knows only its own FormData; the parts are the same objects. */
function ownFormData(form: globalThis.FormData): FormData {
  const own = new FormData()
  for (const [name, value] of form as Iterable<[string, string | File]>) {
    if (typeof value === 'string') own.append(name, value)
    else own.append(name, value, value.name)
  }
  return own
}

type Pinned = { get(connectTimeoutMs: number): Pool; penalize(): void }

/** Keep-alive connections, one pool for each origin and the address it is pinned to. */
class Pools {
  readonly #options: EgressOptions
  readonly #pools = new Map<string, { pool: Pool; usedAt: number }>()
  /** origin and address -> when it counts as reachable again */
  readonly #penalties = new Map<string, number>()
  #sweptAt = performance.now()
  #closed = false

  constructor(options: EgressOptions) {
    this.#options = options
  }

  /** The addresses to try, best first: connected ones, then in the resolver's order, lately unreachable ones last. */
  candidates({ url, addresses }: Target): Pinned[] {
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
    const known = this.#pools.get(key)
    if (known) {
      known.usedAt = now
      return known.pool
    }
    const { ca, fetchIdleTimeoutMs = DEFAULT_FETCH_IDLE_TIMEOUT_MS } = this.#options
    const connect = buildConnector({
      timeout: connectTimeoutMs,
      allowH2: false,
      autoSelectFamily: false,
      ...(ca && { ca }),
    })
    const pool = new Pool(origin, {
      // An address as host name leaves nothing to look up; the certificate is still checked against the url's host.
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
