import { z } from 'zod'
import { AppError, raiseInvalid } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { limitJson } from '#core/base/json-limits.ts'
import type { Services } from '#core/base/services.ts'
import { currentSpan, hostAttributes, type Span, type SpanStart, traced } from '#core/base/telemetry.ts'
import { ATTRIBUTE } from '#core/base/telemetry-names.ts'
import type { EgressRequest } from '#core/net/egress.ts'
import { maskYielding } from '#identity/secrets/mask.ts'
import { openSecrets, tokenIds } from '#identity/secrets/resolve.ts'
import { authorizeToolCall } from './authorize.ts'
import { reserveResponseBytes } from './call-limits.ts'
import { type Callable, callingProject, type Limits, type ToolCall } from './call-types.ts'
import { EventReader } from './event-reader.ts'
import { callTimeouts, httpError, MAX_VALUES, responseOrRaise, type ToolHttpResponse } from './http.ts'
import type { Mcp } from './model.ts'
import { fillSecrets, RequestHeaders, setConfiguredHeaders, setContextHeaders, type ToolRequest } from './request.ts'
import { contextValues, forwardedContext, secretTexts, type TokenValues } from './tokens.ts'

/** Client for the part of the Model Context Protocol (Streamable HTTP) that tool calls need. */

/** Method that calls a tool. */
export const CALL_TOOL = 'tools/call'

/** Requested version. Any version in the server's answer is accepted, since the features used here are equal in all. */
const PROTOCOL_VERSION = '2025-06-18'
const CLIENT = { name: 'muster', version: '1' }
const EVENT_STREAM = /^\s*text\/event-stream\b/i
/** Characters that a server may have echoed in headers. */
const TOKEN = /^[\x21-\x7e]{1,1024}$/
/** Maximum number of stream messages before the answer. */
const MAX_MESSAGES = 10_000
/** Timeout for ending a session, whose outcome does not matter. */
const END_TIMEOUT_MS = 5000

const Message = z.object({
  id: z.unknown().optional(),
  result: z.unknown().optional(),
  error: z.object({ code: z.unknown().optional(), message: z.unknown().optional() }).optional(),
})
type Message = z.output<typeof Message>

type Reply = { answer: ToolHttpResponse; request: ToolRequest; message: Message | null; hidden: string[] }

/**
 * Prepares the session with a tool's server for one call, without sending anything.
 * @throws VALIDATION_FAILED without `mcp`, MISSING_TOOL_CONTEXT_KEY, SECRET_NOT_FOUND, SECRET_NOT_DECRYPTABLE
 */
export async function connectTo(services: Services, { mcp, ...tool }: Callable, call: ToolCall): Promise<McpSession> {
  if (!mcp) return raiseInvalid({ code: 'REQUIRED', path: 'mcp', message: 'is required: the tool has no endpoint yet' })
  const { pool } = services
  const secrets = await openSecrets(pool, services, tool.project_id, tokenIds(secretTexts(mcp)))
  return new McpSession(services, { ...tool, mcp }, call, { secrets, context: call.context })
}

/** Logs one line for a call, whatever its outcome. */
export async function logMcpCall<T>(
  { log }: Services,
  { id, project_id }: Callable,
  action: string | null,
  work: () => Promise<T>,
): Promise<T> {
  const started = performance.now()
  let outcome = 'answer'
  try {
    return await work()
  } catch (error) {
    outcome = error instanceof AppError ? error.code : 'fault'
    throw error
  } finally {
    log.info({ tool_id: id, project_id, action, outcome, ms: Math.round(performance.now() - started) }, 'tool called')
  }
}

type McpMessage = { id?: number; method: string; params?: object }

/** The span of a message. The stored URL has no values of secrets. */
function messageSpan({ message, url }: { message: McpMessage; url: string }): SpanStart {
  const { id, method, params } = message
  const tool = method === CALL_TOOL ? (params as { name: string }).name : null
  return {
    name: tool === null ? method : `${method} ${tool}`,
    kind: 'client',
    attributes: {
      [ATTRIBUTE.mcpMethod]: method,
      [ATTRIBUTE.rpcRequest]: id === undefined ? null : String(id),
      [ATTRIBUTE.toolName]: tool,
      ...hostAttributes(url),
    },
  }
}

/** Session with one server during one tool call. */
export class McpSession {
  readonly #services: Services
  readonly #tool: Callable & { mcp: Mcp }
  readonly #call: ToolCall
  readonly #values: TokenValues
  /** Headers of every request, and the URL including secrets. */
  readonly #headers = new RequestHeaders()
  readonly #url: string
  #session: string | null = null
  #version: string | null = null
  #requestCount = 0
  /** Values to mask. */
  #hidden: string[] = []

  constructor(services: Services, tool: Callable & { mcp: Mcp }, call: ToolCall, values: TokenValues) {
    this.#services = services
    this.#tool = tool
    this.#call = call
    this.#values = values
    const { url, headers = {} } = tool.mcp
    setConfiguredHeaders(this.#headers, headers, values, 'mcp')
    setContextHeaders(
      this.#headers,
      forwardedContext(values.context, tool.context_keys),
      services.config.TOOL_CONTEXT_HEADER_PREFIX,
    )
    this.#url = fillSecrets(url, values)
  }

  /** Returns everything that may affect the server's listing. Contains secrets, so callers hash it. */
  identity(): unknown {
    const { id, project_id, updated_at, mcp } = this.#tool
    const { auth } = mcp
    const { secrets } = this.#values
    return [project_id, callingProject(this.#tool), id, updated_at, this.#url, this.#headers.all(), auth, [...secrets]]
  }

  /**
   * Opens a session if the server supports one, runs the work and ends the session.
   * @throws TOOL_AUTH_FAILED, TOOL_EGRESS_BLOCKED, TOOL_HTTP_ERROR; none contains a secret
   */
  async use<T>(work: (link: McpSession) => Promise<T>): Promise<T> {
    try {
      await this.#open()
      return await work(this)
    } finally {
      // Not awaited.
      void this.#end()
    }
  }

  /** Opens the session. A server that refuses has no sessions and is called directly. */
  async #open(): Promise<void> {
    const params = { protocolVersion: PROTOCOL_VERSION, capabilities: {}, clientInfo: CLIENT }
    const reply = await this.#post({ id: ++this.#requestCount, method: 'initialize', params })
    const { answer, message } = reply
    if (message?.error || (answer.status >= 400 && answer.status < 500)) return
    const session = answer.headers['mcp-session-id'] ?? null
    if (session !== null && !TOKEN.test(session))
      return raiseHttpError(reply, 'Server of the tool returned a session id that is not a valid header value')
    // Stored before the answer is checked, so that the session is ended in any case.
    this.#session = session
    const { protocolVersion } = Object(await requireResult(reply, 'initialize'))
    if (typeof protocolVersion === 'string' && TOKEN.test(protocolVersion)) this.#version = protocolVersion
    // A server that reports an error here repeats it for the next request.
    await this.#post({ method: 'notifications/initialized' })
  }

  /**
   * Makes one request and returns the result in its answer.
   * @throws TOOL_HTTP_ERROR for a status other than 2xx, for a protocol error (`meta.rpc_code`, `meta.rpc_message`),
   *   and for an answer without a result
   */
  async ask(method: string, params: object, idempotencyKey: string | null = null): Promise<unknown> {
    const reply = await this.#post({ id: ++this.#requestCount, method, params }, idempotencyKey)
    return requireResult(reply, method)
  }

  /** Raises TOOL_HTTP_ERROR for a result that reports a failure. */
  async refuse(message: string, text: string): Promise<never> {
    return httpError(message, this.#shownRequest('POST'), {
      tool_status_code: 200,
      tool_response_body: await maskYielding(text, this.#hidden),
    })
  }

  /** Ends the server's session. Never throws. */
  async #end(): Promise<void> {
    if (this.#session === null) return
    const limits = { ...this.#call.limits, until: performance.now() + END_TIMEOUT_MS, signal: undefined }
    await this.#send('DELETE', undefined, limits, {
      maxRedirects: 0,
      redirectMode: 'none',
      isEnough: () => true,
    }).catch(error => this.#services.log.info({ tool_id: this.#tool.id, err: error }, 'mcp session end failed'))
    this.#session = null
  }

  #shownRequest(method: 'POST' | 'DELETE'): ToolRequest {
    const { url } = this.#tool.mcp
    return { method, url, shown: url, headers: new RequestHeaders(), body: undefined }
  }

  /** Sends a message; below a span it has one. */
  #post(message: McpMessage, key: string | null = null): Promise<Reply> {
    return currentSpan()
      ? traced(messageSpan, { message, url: this.#tool.mcp.url }, async span => {
          const reply = await this.#exchange(message, key)
          if (span) this.#note(span, reply)
          return reply
        })
      : this.#exchange(message, key)
  }

  #note(span: Span, { answer, message }: Reply): void {
    const { code } = message?.error ?? {}
    span.set({
      [ATTRIBUTE.status]: answer.status,
      [ATTRIBUTE.mcpVersion]: this.#version,
      [ATTRIBUTE.rpcStatus]: typeof code === 'number' ? String(code) : null,
    })
    if (answer.status >= 400) span.fail(String(answer.status))
    else if (message?.error) span.fail(typeof code === 'number' ? String(code) : 'TOOL_HTTP_ERROR')
    else if (Object(message?.result).isError === true) span.fail('tool_error')
  }

  async #exchange(message: McpMessage, key: string | null): Promise<Reply> {
    const { limits } = this.#call
    const { id } = message
    const events = new EventReader()
    const search = new AnswerSearch(id)
    const isEnough = (chunk: Buffer, headers: Record<string, string>): boolean =>
      // A notification has no answer to wait for.
      id === undefined || (isStream(headers) && events.read(chunk).some(data => search.lookIn(data)))
    const body = JSON.stringify({ jsonrpc: '2.0', ...message })
    const sent = await this.#send('POST', body, limits, { isEnough }, key)
    const { answer } = sent
    reserveResponseBytes(this.#services.config, limits, answer.body.length)
    if (!isStream(answer.headers)) search.lookIn(answer.body)
    if (search.refused)
      return httpError(`Response of the server ${search.refused}`, sent.request, {
        tool_status_code: answer.status,
        reason: 'response_too_large',
      })
    return { ...sent, message: search.message }
  }

  async #send(
    method: 'POST' | 'DELETE',
    body: string | undefined,
    limits: Limits,
    options: Partial<EgressRequest>,
    key: string | null = null,
  ): Promise<Omit<Reply, 'message'>> {
    const { config, egress } = this.#services
    const { mcp, project_id } = this.#tool
    const values = this.#values
    const headers = new RequestHeaders()
    headers.set('Accept', 'application/json, text/event-stream')
    if (body !== undefined) headers.set('Content-Type', 'application/json')
    headers.add(this.#headers)
    if (key !== null) headers.set('Idempotency-Key', key)
    if (this.#version !== null) headers.set('MCP-Protocol-Version', this.#version)
    // Sensitive: the id grants access to the session.
    if (this.#session !== null) headers.set('Mcp-Session-Id', this.#session, true)
    const request = { ...this.#shownRequest(method), url: this.#url, headers, body }
    const credential = mcp.auth
      ? await authorizeToolCall(this.#services, project_id, mcp.auth, request, values, limits)
      : null
    const outcome = await egress.request({
      url: request.url,
      method,
      headers: headers.all(),
      body,
      tenant: callingProject(this.#tool),
      ...callTimeouts(limits),
      maxRedirects: config.TOOL_MAX_REDIRECTS,
      redirectMode: 'standard',
      maxBytes: Math.min(config.TOOL_MAX_RESPONSE_BYTES, Math.max(0, limits.room.bytes)),
      sensitiveHeaders: headers.sensitive(),
      signal: limits.signal,
      ...options,
    })
    const hidden = [...values.secrets.values(), ...contextValues(values.context), ...(credential?.hidden ?? [])]
    this.#hidden = hidden
    const answer = await responseOrRaise(outcome, request, hidden)
    if (answer.status === 401) credential?.forget()
    return { answer, request, hidden }
  }
}

const isStream = (headers: Record<string, string>): boolean => EVENT_STREAM.test(headers['content-type'] ?? '')

/** Search for the message that answers a request. */
class AnswerSearch {
  readonly #id: number | undefined
  message: Message | null = null
  /** Reason for which the messages are not examined further. */
  refused: string | null = null
  #looked = 0

  constructor(id: number | undefined) {
    this.#id = id
  }

  /** Whether the search has ended. */
  lookIn(text: string | Buffer): boolean {
    if (this.#id === undefined) return true
    try {
      const bytes = Buffer.from(text)
      limitJson(bytes, MAX_VALUES)
      // Servers of older protocol versions send arrays of messages.
      for (const each of [parseExactJson(bytes.toString('utf8'))].flat()) this.message ??= this.#answerIn(each)
    } catch (error) {
      if (error instanceof AppError) this.refused = error.message
    }
    if (++this.#looked > MAX_MESSAGES) this.refused ??= `contains more than ${MAX_MESSAGES} messages`
    return this.message !== null || this.refused !== null
  }

  #answerIn(value: unknown): Message | null {
    const { data } = Message.safeParse(value)
    if (!data) return null
    // An error without an id refers to an unreadable request.
    const isOurs = data.id === this.#id || (data.error !== undefined && data.id == null)
    return isOurs && (data.error !== undefined || data.result !== undefined) ? data : null
  }
}

async function raiseHttpError({ answer, request, hidden }: Reply, text: string, meta: object = {}): Promise<never> {
  return httpError(text, request, {
    tool_status_code: answer.status,
    tool_response_body: await maskYielding(answer.body, hidden),
    ...meta,
  })
}

async function requireResult(reply: Reply, method: string): Promise<unknown> {
  const { answer, message, hidden } = reply
  const error = message?.error
  const rpc = error && {
    ...(typeof error.code === 'number' ? { rpc_code: error.code } : {}),
    ...(typeof error.message === 'string' ? { rpc_message: await maskYielding(error.message, hidden) } : {}),
  }
  if (answer.status < 200 || answer.status > 299)
    return raiseHttpError(reply, `Server of the tool responded with ${answer.status} to ${method}`, rpc)
  if (rpc) return raiseHttpError(reply, `Server of the tool responded to ${method} with an error`, rpc)
  if (message?.result !== undefined) return message.result
  const coding = answer.headers['content-encoding'] ?? 'identity'
  const why = coding === 'identity' ? 'contains no result' : 'is compressed, which was not requested'
  return raiseHttpError(reply, `Response of the server to ${method} ${why}`)
}
