import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { DoubleState } from './control.ts'
import { controlRequest } from './control.ts'
import { embedText, maxDims, minDims, pinnedVector, toBase64 } from './embeddings.ts'
import type { DoubleExchange } from './exchange.ts'
import { doubleErrorBody, refuseRequest, sendJson, sendReply, trackConnection } from './exchange.ts'
import { createGates } from './gates.ts'
import type { Lane } from './lanes.ts'
import { createLanes, nextReply, withDefaults } from './lanes.ts'
import { openLog } from './log.ts'
import { answerMcp } from './mcp.ts'
import {
  bodyCallId,
  completionBody,
  composeReply,
  countTokens,
  defaultReply,
  inlineReply,
  laneCallId,
  replyFrames,
} from './reply.ts'
import type { DoubleRequest, RequestBody, RequestKind } from './request.ts'
import { isJsonObject, readChat, readEmbeddings } from './request.ts'
import type { Reply, Script } from './script.ts'
import { checkScript } from './script.ts'

/** Options of a double; `log` is a file to which a line of JSON is appended per request. */
export type DoubleOptions = {
  /** Port, default 0 for a free one. */
  port?: number
  host?: string
  scripts?: Script[]
  /** Default dimensions of embeddings, 8 to 4096. */
  dims?: number
  /** Whether chat requests without a matching rule are refused. */
  strict?: boolean
  log?: string
}

/** A running double; `close` drops open connections and is idempotent. */
export type Double = { url: string; port: number; close(): Promise<void> }

const bodyLimit = 32 * 1024 * 1024
const defaultModels = ['double-1', 'double-embed']

/**
 * Starts the model double, a deterministic OpenAI-compatible server. Resolves when it listens.
 * @throws for an invalid script, dimensions out of range, and if the port or the log file cannot be opened
 */
export async function startDouble(options: DoubleOptions = {}): Promise<Double> {
  const { port = 0, host = '127.0.0.1', scripts = [], dims = 1536, strict = false } = options
  if (!isDims(dims)) throw new RangeError(`dims must be an integer from ${minDims} to ${maxDims}`)
  const gates = createGates()
  const lanes = createLanes(gates)
  for (const each of scripts) {
    const { script, problems } = checkScript(each)
    if (!script) throw new Error(`invalid script: ${problems.join('; ')}`)
    lanes.put(script)
  }
  const state: DoubleState = { lanes, gates, dims, strict, log: await openLog(options.log) }

  // Without an idle limit no pooled connection of a client is closed just when it sends a request.
  const server = createServer({ keepAliveTimeout: 0 }, (request, response) => {
    response.sendDate = false
    // Writing to a disconnected client raises an error event; `trackConnection` records the abort.
    response.on('error', () => {})
    handle(state, request, response).catch(error => {
      if (response.headersSent) response.destroy()
      else sendJson(response, 500, doubleErrorBody(String(error), 'double_error'))
    })
  })
  server.listen({ port, host, backlog: 4096 })
  try {
    await once(server, 'listening')
  } catch (error) {
    await state.log.close()
    throw error
  }
  const address = server.address() as AddressInfo
  let closing: Promise<void> | undefined

  async function close(): Promise<void> {
    const closed = once(server, 'close')
    server.close()
    server.closeAllConnections()
    await closed
    gates.reset()
    await state.log.close()
  }

  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`,
    port: address.port,
    close() {
      closing ??= close()
      return closing
    },
  }
}

async function handle(state: DoubleState, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const method = request.method ?? 'GET'
  const [path, query = ''] = (request.url ?? '/').split('?', 2)
  const body = await readBody(request)
  if (body === undefined) return
  if (body === tooLarge)
    return sendJson(response, 413, doubleErrorBody('body is larger than 32 MiB', 'invalid_request_error'))

  if (method === 'POST' && path === '/v1/chat/completions') return answerModel('chat', state, request, response, body)
  if (method === 'POST' && path === '/v1/embeddings') return answerModel('embeddings', state, request, response, body)
  if (method === 'GET' && path === '/healthz') return sendJson(response, 200, { ok: true })
  if (method === 'GET' && path === '/v1/models') return sendJson(response, 200, listModels(state, request))
  if (method === 'POST' && path === '/mcp') {
    const answer = answerMcp(body)
    return answer ? sendJson(response, 200, answer) : void response.writeHead(202).end()
  }
  if (path.startsWith('/control/')) {
    const segments = decode(path.slice('/control/'.length).split('/'))
    const answer = segments && controlRequest(state, method, segments, new URLSearchParams(query), body.toString())
    if (answer) return sendJson(response, answer.status, answer.body)
  }
  sendJson(response, 404, { error: { message: `no route ${method} ${path}`, type: 'not_found' } })
}

const tooLarge = Symbol('too large')

/** Reads a body. A too large body is read to its end and dropped, so that the client receives the response. */
async function readBody(request: IncomingMessage): Promise<Buffer | typeof tooLarge | undefined> {
  return new Promise(resolve => {
    let parts: Buffer[] = []
    let size = 0
    request.on('data', (part: Buffer) => {
      size += part.length
      if (size <= bodyLimit) parts.push(part)
      else parts = []
    })
    request.on('end', () => {
      if (size > bodyLimit) resolve(tooLarge)
      else resolve(parts.length === 1 ? parts[0] : Buffer.concat(parts))
    })
    // The client disconnected while sending.
    request.on('error', () => resolve(undefined))
  })
}

function decode(segments: string[]): string[] | undefined {
  try {
    return segments.map(decodeURIComponent)
  } catch {
    return undefined
  }
}

function listModels(state: DoubleState, request: IncomingMessage): RequestBody {
  const lane = state.lanes.find(laneOf(state, request, '').lane)
  const models = lane?.script.models ?? defaultModels
  return { object: 'list', data: models.map(id => ({ id, object: 'model', owned_by: 'double' })) }
}

/** Returns the lane of a request, and the model without a prefix that selected the lane. */
function laneOf(state: DoubleState, request: IncomingMessage, model: string): { lane: string; model: string } {
  const header = request.headers['x-double-lane']
  if (typeof header === 'string' && header !== '') return { lane: header, model }
  const bearer = /^Bearer\s+(\S+)$/i.exec(request.headers.authorization ?? '')?.[1]
  if (bearer !== undefined && state.lanes.hasScript(bearer)) return { lane: bearer, model }
  const slash = model.indexOf('/')
  const prefix = model.slice(0, Math.max(slash, 0))
  if (slash > 0 && state.lanes.hasScript(prefix)) return { lane: prefix, model: model.slice(slash + 1) }
  return { lane: 'default', model }
}

/**
 * Answers a model request. Lane, ordinal and reply are determined synchronously, so concurrent requests share no reply.
 */
async function answerModel(
  kind: RequestKind,
  state: DoubleState,
  incoming: IncomingMessage,
  response: ServerResponse,
  bytes: Buffer,
): Promise<void> {
  const raw = bytes.toString()
  let body: unknown
  try {
    body = JSON.parse(raw)
  } catch {
    return sendJson(response, 400, doubleErrorBody('body is not valid JSON', 'invalid_request_error'))
  }
  if (!isJsonObject(body))
    return sendJson(response, 400, doubleErrorBody('body must be a JSON object', 'invalid_request_error'))

  const to = laneOf(state, incoming, typeof body.model === 'string' ? body.model : '')
  const lane = state.lanes.get(to.lane)
  lane.calls[kind] += 1
  const call = lane.calls[kind]
  const headers = { ...incoming.headers }
  if (headers.authorization !== undefined) headers.authorization = to.lane
  const log = state.log.add({
    lane: to.lane,
    kind,
    call,
    rule_id: null,
    reply_index: null,
    status: null,
    streamed: false,
    aborted: false,
    headers,
    body,
  })
  const exchange: DoubleExchange = { response, log, gates: state.gates, gone: false, cut: false, onGone: undefined }
  trackConnection(exchange, state.log.writeFinished)

  const read = kind === 'chat' ? readChat : readEmbeddings
  const request = read({ kind, call, ...to, headers: incoming.headers }, body)
  if (typeof request === 'string') return refuseRequest(exchange, 400, 'invalid_request_error', request)
  if (kind === 'chat') return answerChat(state, lane, request, exchange, raw)
  return answerEmbeddings(state, lane, request, exchange)
}

async function answerChat(
  state: DoubleState,
  lane: Lane,
  request: DoubleRequest,
  exchange: DoubleExchange,
  raw: string,
): Promise<void> {
  let chosen: Reply
  let callId = laneCallId(request)
  let literal = false
  const next = nextReply(lane, request)
  if (next) {
    exchange.log.rule_id = next.id
    exchange.log.reply_index = next.index
    chosen = next.reply
  } else {
    if (state.strict || lane.script.strict) return refuseRequest(exchange, 400, 'double_no_match', 'no rule matched')
    const inline = inlineReply(request)
    if (inline?.problems) return refuseRequest(exchange, 400, 'double_bad_directive', inline.problems.join('; '))
    if (inline) {
      exchange.log.reply_index = inline.index
      chosen = inline.reply
      callId = bodyCallId(raw)
    } else if (lane.script.fallback) chosen = lane.script.fallback
    else {
      chosen = defaultReply(request)
      literal = true
    }
  }
  const reply = withDefaults(lane, chosen)
  const answer = composeReply(reply, request, callId, literal)
  const empty = reply.corrupt === 'empty'
  return sendReply(exchange, reply, {
    whole: () => completionBody(answer, request, empty),
    ...(request.stream && { frames: () => replyFrames(answer, request, empty) }),
  })
}

async function answerEmbeddings(
  state: DoubleState,
  lane: Lane,
  request: DoubleRequest,
  exchange: DoubleExchange,
): Promise<void> {
  const dims = request.body.dimensions ?? state.dims
  if (!isDims(dims))
    return refuseRequest(
      exchange,
      400,
      'invalid_request_error',
      `dimensions must be an integer from ${minDims} to ${maxDims}`,
    )
  const encoding = request.body.encoding_format ?? 'float'
  if (encoding !== 'float' && encoding !== 'base64')
    return refuseRequest(exchange, 400, 'invalid_request_error', 'encoding_format must be float or base64')

  let reply: Reply = {}
  const next = nextReply(lane, request)
  if (next) {
    exchange.log.rule_id = next.id
    exchange.log.reply_index = next.index
    reply = withDefaults(lane, next.reply)
  } else reply = nextEmbeddingFault(lane)

  const { alias = {}, pin = {} } = lane.script.embeddings ?? {}
  return sendReply(exchange, reply, {
    whole: () => {
      const prompt =
        reply.usage?.prompt_tokens ?? request.messages.reduce((sum, each) => sum + countTokens(each.text), 0)
      const data = request.messages.map(({ text }, index) => {
        const source = Object.hasOwn(alias, text) ? alias[text] : text
        const vector = Object.hasOwn(pin, source) ? pinnedVector(pin[source], dims) : embedText(source, dims)
        return { object: 'embedding', index, embedding: encoding === 'base64' ? toBase64(vector) : vector }
      })
      return {
        object: 'list',
        data: reply.corrupt === 'empty' ? [] : data,
        model: reply.model ?? request.requested,
        ...(reply.usage !== null && { usage: { prompt_tokens: prompt, total_tokens: prompt } }),
      }
    },
  })
}

/** Returns the scripted fault of embeddings (error, gate, delay), for the first `times` requests or for all. */
function nextEmbeddingFault(lane: Lane): Reply {
  const { error, gate, delay_ms, times = Infinity } = lane.script.embeddings ?? {}
  if (lane.troubled >= times) return {}
  lane.troubled += 1
  return { error, gate, delay_ms }
}

function isDims(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= minDims && (value as number) <= maxDims
}
