import { randomUUID } from 'node:crypto'
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http'
import type { Socket } from 'node:net'
import { AppError, errorBody } from '../api/errors.ts'
import { type Logger, redactCredentials } from '../process/log.ts'

/** Statuses of what node's parser refuses; anything else is 400. */
const STATUS_OF: Record<string, number> = {
  ERR_HTTP_REQUEST_TIMEOUT: 408,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  HPE_HEADER_OVERFLOW: 431,
}

/** How long a refused sender has to read the answer. */
const LINGER_MS = 1000

const REQUEST_ID = /^[\x21-\x7e]{1,128}$/

/** The request's own id when the client sent a usable one that is no credential, else a new one. */
export function requestIdOf(req: IncomingMessage): string {
  const sent = req.headers['x-request-id']
  return typeof sent === 'string' && REQUEST_ID.test(sent) && redactCredentials(sent) === sent ? sent : randomUUID()
}

/**
 * A server whose own refusals (bad request line, bad method, headers over size, a request that never ends) are
 * REQUEST_REJECTED in the error shape, each with a request id and a log line.
 * @param options.requestTimeoutMs the longest that any request may take to arrive; default five minutes
 * @param options.keepAliveMs how long an idle connection is kept; answers name it in `Keep-Alive`
 */
export function openServer(
  listener: RequestListener,
  options: { docsBaseUrl: string; log: Logger; requestTimeoutMs?: number; keepAliveMs?: number },
): Server {
  const { docsBaseUrl, log, requestTimeoutMs = 300_000, keepAliveMs = 65_000 } = options
  // Without a Host header a request is as good as with one: nothing here depends on it.
  const server = createServer({ requireHostHeader: false }, listener)
  server.keepAliveTimeout = keepAliveMs
  server.headersTimeout = 66_000
  server.requestTimeout = requestTimeoutMs

  const refusal = (status: number, message: string, level: 'info' | 'debug' = 'info') => {
    const requestId = randomUUID()
    log[level]({ request_id: requestId, status, reason: message }, 'request')
    const text = JSON.stringify(errorBody(new AppError('REQUEST_REJECTED', { status, message }), docsBaseUrl))
    return {
      text,
      headers: {
        'Content-Type': 'application/json; charset=utf-8',
        'Content-Length': String(Buffer.byteLength(text)),
        'X-Request-Id': requestId,
        Connection: 'close',
      },
    }
  }

  const refuseSocket = (socket: Socket, status: number, message: string, level?: 'debug') => {
    const { text, headers } = refusal(status, message, level)
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
    socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('\r\n')}\r\n\r\n${text}`)
    // A sender that never closes its side would keep what its request holds.
    setTimeout(() => socket.destroy(), LINGER_MS).unref()
  }

  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // An answer that has begun cannot be followed by another one on its connection.
    const answering = (socket as Socket & { _httpMessage?: ServerResponse })._httpMessage?.headersSent
    if (error.code === 'ECONNRESET' || !socket.writable || answering) return void socket.destroy()
    const status = STATUS_OF[error.code ?? ''] ?? 400
    // A client that leaves in the middle of a request costs no line, like one that resets its connection.
    const level = error.code === 'HPE_INVALID_EOF_STATE' ? 'debug' : undefined
    refuseSocket(socket as Socket, status, STATUS_CODES[status] as string, level)
  })
  server.on('connect', (_req: IncomingMessage, socket) =>
    refuseSocket(socket as Socket, 405, 'CONNECT is not supported'),
  )
  server.on('checkExpectation', (_req: IncomingMessage, res: ServerResponse) => {
    const { text, headers } = refusal(417, 'Expectation Failed')
    res.writeHead(417, headers).end(text)
  })
  return server
}

/** How many looks in a row find nothing new before a sender is said to pause. */
const LOOKS = 4

/**
 * Gives up a body whose sender pauses for longer than `idleMs` or takes longer than `totalMs`, as node gives up a
 * request that never ends: 408, and the connection is closed. Both bounds are met up to a quarter of `idleMs`. One look
 * would not do: it may fall into the moment between the end of a pause of ours and the next bytes.
 */
export function limitBodyTime(req: IncomingMessage, { totalMs, idleMs }: { totalMs: number; idleMs: number }): void {
  const { socket } = req
  const started = performance.now()
  let read = socket.bytesRead
  let quiet = 0
  const timer = setInterval(() => {
    // Nothing waits for what has arrived; a full buffer is a pause of ours.
    quiet = socket.bytesRead === read && req.readableLength === 0 ? quiet + 1 : 0
    read = socket.bytesRead
    if (!req.complete && quiet < LOOKS && performance.now() - started <= totalMs) return
    clearInterval(timer)
    if (req.complete) return
    const error = Object.assign(new Error('the body did not come in time'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' })
    const { server } = socket as Socket & { server?: Server }
    server?.emit('clientError', error, socket)
  }, idleMs / LOOKS)
  timer.unref()
  req.once('close', () => clearInterval(timer))
}

/** Closes the connection of a reader that lets an answer wait for longer than `idleMs`. */
export function limitReaderStall(res: ServerResponse, idleMs: number): void {
  res.setTimeout(idleMs, () => {
    // An answer that has nothing to say for a while waits for us.
    if (res.writableNeedDrain) res.destroy()
  })
  // The connection may have another answer to wait for.
  res.prependOnceListener('finish', () => res.setTimeout(0))
}
