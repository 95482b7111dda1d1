import type { ServerResponse } from 'node:http'
import { STATUS_CODES } from 'node:http'
import type { Gates } from './gates.ts'
import type { RequestLog } from './log.ts'
import { sseFrame } from './reply.ts'
import type { RequestBody } from './request.ts'
import type { Failure, Reply } from './script.ts'

/** A model request being answered. */
export type DoubleExchange = {
  response: ServerResponse
  log: RequestLog
  gates: Gates
  /** The connection is closed. */
  gone: boolean
  /** The double closed it itself. */
  cut: boolean
  /** Ends the wait under way, if any, when the client leaves. */
  onGone: (() => void) | undefined
}

/** A streamed answer: frames that come first and last, and between them the pieces a reply counts and delays. */
export type Frames = { first: string; pieces: string[]; last: string }

/** How an answer is rendered: whole, and as frames when a stream was asked for. */
export type ReplyRendering = { whole: () => RequestBody; frames?: () => Frames }

/** The error shape of the OpenAI API. */
export function doubleErrorBody(message: string, type: string): RequestBody {
  return { error: { message, type, code: null } }
}

/** Sends a JSON body. */
export function sendJson(response: ServerResponse, status: number, body: unknown, headers: JsonHeaders = {}): void {
  const text = JSON.stringify(body)
  sendText(response, status, text, { 'content-type': 'application/json', ...headers })
}

type JsonHeaders = Record<string, string>

function sendText(response: ServerResponse, status: number, text: string, headers: JsonHeaders): void {
  const bodiless = status === 204 || status === 304
  response.writeHead(status, bodiless ? headers : { ...headers, 'content-length': String(Buffer.byteLength(text)) })
  response.end(bodiless ? undefined : text)
}

/** Follows the connection of an exchange: notes an abort and ends its wait. `finished` is called once it is over. */
export function trackConnection(exchange: DoubleExchange, finished: (log: RequestLog) => void): void {
  exchange.response.on('close', () => {
    exchange.gone = true
    exchange.log.aborted = !exchange.response.writableFinished && !exchange.cut
    exchange.onGone?.()
    finished(exchange.log)
  })
}

/** Refuses a request. */
export function refuseRequest(exchange: DoubleExchange, status: number, type: string, message: string): void {
  exchange.log.status = status
  sendJson(exchange.response, status, { error: { message, type } })
}

/** Plays a reply: waits at its gate and for its delay, then fails, cuts, streams or answers whole. */
export async function sendReply(exchange: DoubleExchange, reply: Reply, rendering: ReplyRendering): Promise<void> {
  const gateFirst = reply.gate_after === undefined || !rendering.frames
  if (reply.gate !== undefined && gateFirst && !(await passGate(exchange, reply.gate))) return
  if (reply.delay_ms && !(await pause(exchange, reply.delay_ms))) return
  if (reply.error) return sendFailure(exchange, reply.error, reply.headers)
  if (reply.cut?.after === 0) return cut(exchange)
  if (rendering.frames) return stream(exchange, reply, rendering.frames())

  const text = JSON.stringify(rendering.whole())
  const headers = { 'content-type': 'application/json', ...lowerCased(reply.headers) }
  exchange.log.status = 200
  if (reply.cut) {
    exchange.response.writeHead(200, { ...headers, 'content-length': String(Buffer.byteLength(text)) })
    await flush(exchange, half(text))
    return cut(exchange)
  }
  const corrupt = reply.corrupt === 'json' || reply.corrupt === 'sse'
  sendText(exchange.response, 200, corrupt ? half(text) : text, headers)
}

/** Sends frames, with the waits and faults of the reply at its counted pieces. */
async function stream(exchange: DoubleExchange, reply: Reply, frames: Frames): Promise<void> {
  const { response } = exchange
  const total = frames.pieces.length
  // A count past the end means: after the last piece.
  const at = (after: number | undefined) => (after === undefined ? -1 : Math.min(after, total))
  const gateAt = reply.gate === undefined ? -1 : at(reply.gate_after)
  const cutAt = at(reply.cut?.after)
  const errorAt = at(reply.stream_error?.after)

  exchange.log.status = 200
  exchange.log.streamed = true
  response.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache',
    ...lowerCased(reply.headers),
  })
  // Frames without a wait between them leave in one write.
  let out = frames.first
  if (reply.corrupt === 'json') out += `${half(frames.pieces[0] ?? frames.first).trimEnd()}\n\n`
  if (reply.corrupt === 'sse') out += 'data: {not json\n\n'
  for (let sent = 0; ; sent += 1) {
    if (sent === gateAt) {
      response.write(out)
      out = ''
      if (!(await passGate(exchange, reply.gate!))) return
    }
    if (sent === cutAt) {
      await flush(exchange, out)
      return cut(exchange)
    }
    if (sent === errorAt) {
      response.end(out + sseFrame({ error: { message: reply.stream_error!.message } }))
      return
    }
    if (sent === total) break
    if (sent > 0 && reply.chunk_delay_ms) {
      if (out) response.write(out)
      out = ''
      if (!(await pause(exchange, reply.chunk_delay_ms))) return
    }
    out += frames.pieces[sent]
  }
  response.end(out + frames.last)
}

function sendFailure(exchange: DoubleExchange, error: Failure, headers: Reply['headers']): void {
  const { status } = error
  exchange.log.status = status
  const body =
    error.body ?? doubleErrorBody(error.message ?? STATUS_CODES[status] ?? 'error', error.type ?? typeOf(status))
  sendText(exchange.response, status, typeof body === 'string' ? body : JSON.stringify(body), {
    'content-type': typeof body === 'string' ? 'text/plain; charset=utf-8' : 'application/json',
    ...(error.retry_after !== undefined && { 'retry-after': String(error.retry_after) }),
    ...lowerCased(headers),
  })
}

function typeOf(status: number): string {
  if (status === 401) return 'authentication_error'
  if (status === 403) return 'permission_error'
  if (status === 404) return 'not_found'
  if (status === 429) return 'rate_limit_error'
  return status >= 500 ? 'server_error' : 'invalid_request_error'
}

function lowerCased(headers: Reply['headers']): JsonHeaders {
  if (!headers) return {}
  return Object.fromEntries(
    Object.entries(headers)
      .map(([name, value]) => [name.toLowerCase(), value])
      // The framing of the body is the server's own.
      .filter(([name]) => name !== 'content-length' && name !== 'transfer-encoding'),
  )
}

function half(text: string): string {
  return text.slice(0, Math.ceil(text.length / 2))
}

function passGate(exchange: DoubleExchange, gate: string): Promise<boolean> | boolean {
  if (exchange.gone) return false
  return exchange.gates.wait(gate, exchange.log.lane, exchange.log.n, gone => {
    exchange.onGone = gone
  })
}

function pause(exchange: DoubleExchange, ms: number): Promise<boolean> | boolean {
  if (exchange.gone) return false
  return new Promise(resolve => {
    const timer = setTimeout(resolve, ms, true)
    exchange.onGone = () => {
      clearTimeout(timer)
      resolve(false)
    }
  })
}

/** Writes and waits until the bytes have left, so that a cut comes after them. */
function flush(exchange: DoubleExchange, text: string): Promise<unknown> {
  return new Promise(resolve => exchange.response.write(text, resolve))
}

function cut(exchange: DoubleExchange): void {
  exchange.cut = true
  exchange.response.destroy()
}
