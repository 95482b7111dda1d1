import { type ErrorFields, errorOf, MusterError, NoAnswer, NotFound } from './errors.ts'
import { VERSION } from './generated/version.ts'
import { backoffMs, bytesOf, sleep, textOf } from './limits.ts'

export type ClientOptions = {
  /** Address of the service, without `/api/v1`. */
  baseUrl: string | URL
  /** Project key, token of a user or of an end user, or a function that returns a valid one for each request. */
  token?: string | (() => string | Promise<string>)
  /** Project of calls that may name one and do not. */
  project?: string
  /** Time in which an answer must arrive, for each try. Default 60,000. */
  timeoutMs?: number
  /** Tries after the first. Default 2. */
  maxRetries?: number
  /** Used in place of the global `fetch`. */
  fetch?: typeof fetch
  /** Parses answers and events. Default `JSON.parse`, which rounds numbers; `parseExactJson` keeps their digits. */
  parseJson?: (text: string) => unknown
  /** Allows a project key in a browser without a warning. */
  allowKeyInBrowser?: boolean
}

export type CallOptions = {
  /** Ends waiting for the answer. */
  signal?: AbortSignal
  timeoutMs?: number
  maxRetries?: number
  /** Key that makes a POST idempotent. Default a random one where the call may be repeated. */
  idempotencyKey?: string
  /** ETag of the record when it was read: the request is refused if it has changed since. */
  ifMatch?: string
  headers?: Record<string, string>
}

/** An answer with its status and headers. */
export type Answer<T> = { data: T; status: number; headers: Headers; requestId: string | null; etag: string | null }

/** A request of an operation. */
export type Outgoing = {
  method: string
  /** Path and query below the base address. */
  path: string
  headers?: Record<string, string>
  body?: RequestInit['body']
  /** Whether the body can be read only once. */
  isOneWay?: boolean
  /** Whether the operation accepts an Idempotency-Key. */
  isKeyed?: boolean
  accept: string
}

/** Reads the body of a successful answer. */
export type AnswerReader<T> = (response: Response, reading: Reading) => Promise<T>
export type Reading = {
  signal: AbortSignal
  parseJson: (text: string) => unknown
  /** Keeps the connection after the reader has returned; call the result to close it. */
  keep: () => () => void
}

const RETRIED = [408, 429, 502, 503, 504]
const RETRY_AFTER_MAX_SECONDS = 60
const REDIRECTS_MAX = 5

let warned = false

/** Returns the run time by its user agent, such as `node` or `browser`. */
function runTime(): string {
  const agent = globalThis.navigator?.userAgent ?? ''
  return (
    /^(Node|Bun|Deno|Cloudflare-Workers)/.exec(agent)?.[1].toLowerCase() ??
    (agent.startsWith('Mozilla') ? 'browser' : 'other')
  )
}

/** Connection to a service: address, credential, and rules for repeats. The functions of `./operations` take one. */
export class Client {
  readonly baseUrl: string
  readonly project: string | undefined
  readonly parseJson: (text: string) => unknown
  readonly #origin: string
  readonly #token: ClientOptions['token']
  readonly #fetch: typeof fetch
  readonly #timeoutMs: number
  readonly #maxRetries: number
  readonly #allowKeyInBrowser: boolean

  constructor(options: ClientOptions) {
    const { baseUrl, token, project, timeoutMs, maxRetries, fetch, parseJson, allowKeyInBrowser } = options
    const url = new URL(baseUrl)
    if (!/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash)
      throw new TypeError('baseUrl must be an http or https address without credentials, query and fragment')
    this.baseUrl = url.href.replace(/\/$/, '')
    this.project = project
    this.parseJson = parseJson ?? (text => JSON.parse(text))
    this.#origin = url.origin
    this.#token = token
    this.#fetch = fetch ?? ((...args) => globalThis.fetch(...args))
    this.#timeoutMs = timeoutMs ?? 60_000
    this.#maxRetries = maxRetries ?? 2
    this.#allowKeyInBrowser = allowKeyInBrowser ?? false
  }

  /** Sends a request, repeated where that is safe, and reads its answer. */
  async request<T>(outgoing: Outgoing, read: AnswerReader<T>, options: CallOptions = {}): Promise<Answer<T>> {
    const { method, isOneWay = false, isKeyed = false } = outgoing
    const { signal, idempotencyKey, ifMatch, timeoutMs = this.#timeoutMs } = options
    const maxRetries = options.maxRetries ?? this.#maxRetries
    const isRepeatable =
      !isOneWay && maxRetries > 0 && (method === 'GET' || (method === 'POST' ? isKeyed : ifMatch === undefined))
    const key = idempotencyKey ?? (method === 'POST' && isRepeatable ? randomKey() : undefined)
    const headers: Record<string, string> = {
      accept: outgoing.accept,
      'x-muster-client': `${VERSION}/${runTime()}`,
      ...outgoing.headers,
      ...(key === undefined ? {} : { 'idempotency-key': key }),
      ...(ifMatch === undefined ? {} : { 'if-match': ifMatch }),
      ...Object.fromEntries(Object.entries(options.headers ?? {}).map(([name, value]) => [name.toLowerCase(), value])),
    }
    const start = Date.now()
    let tries = 0
    for (;;) {
      const token = await this.#credential()
      try {
        return await this.#attempt(outgoing, { ...headers, ...token }, read, { signal, timeoutMs })
      } catch (error) {
        signal?.throwIfAborted()
        // A first try that was executed and whose answer was lost has deleted the record.
        if (tries > 0 && method === 'DELETE' && error instanceof NotFound)
          return { data: undefined as T, status: 204, headers: new Headers(), requestId: error.requestId, etag: null }
        if (!isRepeatable) throw error
        const isAwaited = error instanceof MusterError && error.code === 'IDEMPOTENCY_IN_PROGRESS'
        if (isAwaited ? Date.now() - start > timeoutMs : tries >= maxRetries) throw error
        const delay = isAwaited ? (error.retryAfter ?? 1) * 1000 : delayBefore(error, tries)
        if (delay === null) throw error
        if (!isAwaited) tries++
        await sleep(delay, signal)
      }
    }
  }

  /** Returns the header of the credential. Its value is checked here: an error of `fetch` would contain it. */
  async #credential(): Promise<{ authorization?: string }> {
    const token = typeof this.#token === 'function' ? await this.#token() : this.#token
    if (token === undefined) return {}
    if (!/^[\x21-\x7e]+$/.test(token)) throw new TypeError('token has characters that no header may have')
    if (token.startsWith('sk_') && !this.#allowKeyInBrowser && !warned && runTime() === 'browser') {
      warned = true
      console.warn('muster: a project key in a browser can be read by everybody who opens the page')
    }
    return { authorization: `Bearer ${token}` }
  }

  async #attempt<T>(
    outgoing: Outgoing,
    headers: Record<string, string>,
    read: AnswerReader<T>,
    { signal, timeoutMs }: { signal?: AbortSignal; timeoutMs: number },
  ): Promise<Answer<T>> {
    const controller = new AbortController()
    const onAbort = () => controller.abort(signal?.reason)
    if (signal?.aborted) onAbort()
    signal?.addEventListener('abort', onAbort, { once: true })
    const late = new NoAnswer('timeout', `no answer within ${timeoutMs / 1000} s`)
    const timer = setTimeout(() => controller.abort(late), timeoutMs)
    const release = () => signal?.removeEventListener('abort', onAbort)
    const stop = () => {
      release()
      controller.abort()
    }
    let isKept = false
    const keep = () => {
      isKept = true
      return stop
    }
    try {
      const response = await this.#follow(outgoing, headers, controller.signal)
      const { status } = response
      const received = { status, headers: response.headers, requestId: response.headers.get('x-request-id') }
      if (!response.ok) throw await refusalOf(response, controller.signal)
      const data = await read(response, { signal: controller.signal, parseJson: this.parseJson, keep })
      if (!isKept) release()
      return { ...received, data, etag: response.headers.get('etag') }
    } catch (error) {
      stop()
      if (signal?.aborted) throw signal.reason
      if (controller.signal.reason === late) throw late
      if (error instanceof NoAnswer || error instanceof MusterError) throw error
      const text = textOf(error).replaceAll(headers.authorization?.slice(7) || '\0', '…')
      throw new NoAnswer('network', `${outgoing.method} ${this.#origin}: ${text}`)
    } finally {
      clearTimeout(timer)
    }
  }

  /** Sends a request and follows redirects within the origin; the credential leaves for no other. */
  async #follow(outgoing: Outgoing, headers: Record<string, string>, signal: AbortSignal): Promise<Response> {
    const { method, body, isOneWay } = outgoing
    let url = `${this.baseUrl}${outgoing.path}`
    for (let count = 0; count <= REDIRECTS_MAX; count++) {
      const response = await this.#fetch(url, {
        method,
        headers,
        body,
        signal,
        redirect: 'manual',
        // Required for a body that is a stream.
        ...(isOneWay ? { duplex: 'half' } : {}),
      })
      const location = response.headers.get('location')
      const isRedirect = response.status >= 300 && response.status < 400 && response.status !== 304
      if (!isRedirect && response.type !== 'opaqueredirect') return response
      response.body?.cancel().catch(() => {})
      const next = location === null ? null : new URL(location, url)
      if (next?.origin !== this.#origin)
        throw new NoAnswer('redirect', 'the answer is a redirect to another origin', response.status)
      if (method !== 'GET' && (response.status < 307 || isOneWay))
        throw new NoAnswer('redirect', `the answer is a redirect of a ${method}`, response.status)
      url = next.href
    }
    throw new NoAnswer('redirect', 'the answer is the last of too many redirects')
  }
}

/** Returns the delay before a repeat; null if the error excludes one. */
function delayBefore(error: unknown, tries: number): number | null {
  if (error instanceof NoAnswer)
    return ['network', 'timeout', 'broken'].includes(error.reason) ? backoffMs(tries) : null
  if (!(error instanceof MusterError) || !RETRIED.includes(error.status)) return null
  const { retryAfter, status } = error
  if (retryAfter === null) return status === 429 ? null : backoffMs(tries)
  return retryAfter <= RETRY_AFTER_MAX_SECONDS ? retryAfter * 1000 : null
}

/** Returns the error of a refusal; NoAnswer if the body is no error of the service. */
async function refusalOf(response: Response, signal: AbortSignal): Promise<Error> {
  const { status, headers } = response
  const text = new TextDecoder().decode(await bytesOf(response.body, { signal }))
  const fields = isJson(response) ? (parsed(text, JSON.parse) as { error?: ErrorFields } | undefined)?.error : undefined
  if (typeof fields?.code !== 'string')
    return new NoAnswer('broken', `the answer with status ${status} is no error of the service`, status)
  const requestId = headers.get('x-request-id')
  return errorOf(fields, { status, requestId, retryAfter: secondsOf(headers.get('retry-after')) })
}

/** Returns the seconds of a Retry-After, which has a number or a date. */
function secondsOf(value: string | null): number | null {
  if (value === null) return null
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000
  return Number.isNaN(seconds) ? null : Math.max(0, seconds)
}

const typeOf = (response: Response): string =>
  (response.headers.get('content-type') ?? '').split(';')[0].trim().toLowerCase()

const isJson = (response: Response): boolean => typeOf(response) === 'application/json'

function parsed(text: string, parse: Reading['parseJson']): unknown {
  try {
    return parse(text)
  } catch {
    return undefined
  }
}

/** Checks that an answer has the content type that the operation documents. */
export function requireType(response: Response, type: string): void {
  const received = typeOf(response)
  if (received === type) return
  throw new NoAnswer('type', `the answer is ${received || 'of no type'}, not ${type}`, response.status)
}

/** Reads an answer of JSON; nothing if it has no content. */
export async function readJson<T>(response: Response, { signal, parseJson }: Reading): Promise<T> {
  if (response.status === 204) return undefined as T
  requireType(response, 'application/json')
  const value = parsed(new TextDecoder().decode(await bytesOf(response.body, { signal })), parseJson)
  if (value === undefined) throw new NoAnswer('broken', 'the answer is no JSON', response.status)
  return value as T
}

/** Returns 128 random bits in hex. `crypto.randomUUID` is missing on pages without TLS. */
export const randomKey = (): string =>
  [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, '0')).join('')
