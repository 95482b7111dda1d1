import type { ServerResponse } from 'node:http'
import { STATUS_CODES } from 'node:http'
import type { Gates } from './gates.ts'
import type { RequestLog } from './log.ts'
import { sseFrame } from './reply.ts'
import type { RequestBody } from './request.ts'
import type { Failure, Reply } from './script.ts'

/** A model request in progress. */
export type DoubleExchange = {
  response: ServerResponse
  log: RequestLog
  gates: Gates
  /** Whether the connection is closed. */
  gone: boolean
  /** Whether the double closed it deliberately. */
  cut: boolean
  /** Ends the current wait when the client disconnects. */
  onGone: (() => void) | undefined
}

/** A streamed answer: its first and last frames, and the pieces between them, which a reply counts and delays. */
export type Frames = { first: string; pieces: string[]; last: string }

/** Renders an answer as a whole, and as frames if a stream was requested. */
export type ReplyRendering = { whole: () => RequestBody; frames?: () => Frames }

/** Returns an error in the format of the OpenAI API. */
export function doubleErrorBody(message: string, type: string): RequestBody {
  return { error: { message, type, code: null } }
}

/** Sends a JSON body. */
export function sendJson(response: ServerResponse, status: number, body: unknown): void {
  sendText(response, status, JSON.stringify(body), { 'content-type': 'application/json' })
}

type JsonHeaders = Record<string, string>

function sendText(response: ServerResponse, status: number, text: string, headers: JsonHeaders): void {
  const bodiless = status === 204 || status === 304
  response.writeHead(status, bodiless ? headers : { ...headers, 'content-length': String(Buffer.byteLength(text)) })
  response.end(bodiless ? undefined : text)
}

/** Records an abort of the connection and ends its wait. Calls `onFinished` once the connection is closed. */
export function trackConnection(exchange: DoubleExchange, onFinished: (log: RequestLog) => void): void {
  exchange.response.on('close', () => {
    exchange.gone = true
    exchange.log.aborted = !exchange.response.writableFinished && !exchange.cut
    exchange.onGone?.()
    onFinished(exchange.log)
  })
}

/** Answers a request with an error. */
export function refuseRequest(exchange: DoubleExchange, status: number, type: string, message: string): void {
  exchange.log.status = status
  sendJson(exchange.response, status, { error: { message, type } })
}

/**
 * Sends a reply: waits at its gate and for its delay, then fails, cuts the connection, streams or answers as a whole.
 */
export async function sendReply(exchange: DoubleExchange, reply: Reply, rendering: ReplyRendering): Promise<void> {
  const gateFirst = reply.gate_after === undefined || !rendering.frames
  if (reply.gate !== undefined && gateFirst && !(await passGate(exchange, reply.gate))) return
  if (reply.delay_ms && !(await pause(exchange, reply.delay_ms))) return
  if (reply.error) return sendFailure(exchange, reply.error, reply.headers)
  if (reply.cut?.after === 0) return cutConnection(exchange)
  if (rendering.frames) return sendFrames(exchange, reply, rendering.frames())

  const text = JSON.stringify(rendering.whole())
  const headers = { 'content-type': 'application/json', ...lowerCased(reply.headers) }
  exchange.log.status = 200
  if (reply.cut) {
    exchange.response.writeHead(200, { ...headers, 'content-length': String(Buffer.byteLength(text)) })
    await flush(exchange, firstHalf(text))
    return cutConnection(exchange)
  }
  const isCorrupt = reply.corrupt === 'json' || reply.corrupt === 'sse'
  sendText(exchange.response, 200, isCorrupt ? firstHalf(text) : text, headers)
}

/** Sends frames, with the waits and faults of the reply at the given pieces. */
async function sendFrames(exchange: DoubleExchange, reply: Reply, frames: Frames): Promise<void> {
  const { response } = exchange
  const total = frames.pieces.length
  // A count past the end applies after the last piece.
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
  // Frames without a wait between them are sent in one write.
  let out = frames.first
  if (reply.corrupt === 'json') out += `${firstHalf(frames.pieces[0] ?? frames.first).trimEnd()}\n\n`
  if (reply.corrupt === 'sse') out += 'data: {not json\n\n'
  for (let sent = 0; ; sent += 1) {
    if (sent === gateAt) {
      response.write(out)
      out = ''
      if (!(await passGate(exchange, reply.gate!))) return
    }
    if (sent === cutAt) {
      await flush(exchange, out)
      return cutConnection(exchange)
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
      // The server determines the framing of the body.
      .filter(([name]) => name !== 'content-length' && name !== 'transfer-encoding'),
  )
}

function firstHalf(text: string): string {
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

/** Writes a text and waits until it is sent, before the connection is cut. */
function flush(exchange: DoubleExchange, text: string): Promise<unknown> {
  return new Promise(resolve => exchange.response.write(text, resolve))
}

function cutConnection(exchange: DoubleExchange): void {
  exchange.cut = true
  exchange.response.destroy()
}
