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
import { AppError, errorBody } from '../base/errors.ts'
import { type Logger, redactCredentials } from '../base/log.ts'

/** Statuses of errors of node's parser; default 400. */
const STATUS_OF: Record<string, number> = {
  ERR_HTTP_REQUEST_TIMEOUT: 408,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  HPE_HEADER_OVERFLOW: 431,
}

/** Time for a refused client to read the response. */
const LINGER_MS = 1000

const REQUEST_ID = /^[\x21-\x7e]{1,128}$/

/** Returns the id sent by the client if it is well-formed and not a credential, otherwise a new id. */
export function requestIdOf(req: IncomingMessage): string {
  const id = req.headers['x-request-id']
  return typeof id === 'string' && REQUEST_ID.test(id) && redactCredentials(id) === id ? id : randomUUID()
}

/**
 * Creates an HTTP server whose protocol errors (invalid request line or method, oversized headers, timeout) are sent as
 * REQUEST_REJECTED in the standard error body, each with a request id and a log line.
 * @param options.requestTimeoutMs time limit to receive a request; default five minutes
 * @param options.keepAliveMs idle timeout of connections, sent in `Keep-Alive`
 * @param options.idleMs maximum pause of a client while it reads a response; default two minutes
 */
export function openServer(
  listener: RequestListener,
  options: { docsBaseUrl: string; log: Logger; requestTimeoutMs?: number; keepAliveMs?: number; idleMs?: number },
): Server {
  const { docsBaseUrl, log, requestTimeoutMs = 300_000, keepAliveMs = 65_000, idleMs = 120_000 } = options
  const serve = serveInOrder(listener)
  // The Host header is not used.
  const server = createServer({ requireHostHeader: false }, (req, res) => {
    res.setHeader('X-Content-Type-Options', 'nosniff')
    serve(req, res)
  })
  limitReaderStall(server, idleMs)
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
        'X-Content-Type-Options': 'nosniff',
        Connection: 'close',
      },
    }
  }

  const refuseSocket = (socket: Socket, status: number, message: string, level?: 'debug') => {
    const { text, headers } = refusal(status, message, level)
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
    socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('\r\n')}\r\n\r\n${text}`)
    // Releases the memory of the request if the client never closes its side.
    setTimeout(() => socket.destroy(), LINGER_MS).unref()
  }

  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // A partially sent response cannot be followed by another one.
    const answering = (socket as Socket & { _httpMessage?: ServerResponse })._httpMessage?.headersSent
    if (error.code === 'ECONNRESET' || !socket.writable || answering) return void socket.destroy()
    const status = STATUS_OF[error.code ?? ''] ?? 400
    // A client that disconnects during a request is not logged at info, as for a connection reset.
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

/** Number of consecutive checks without new bytes before a sender is considered idle. */
const IDLE_CHECKS = 4

/**
 * Ends a request with 408 and closes its connection if the body pauses for longer than `idleMs` or takes longer than
 * `totalMs`, both with a tolerance of a quarter of `idleMs`. A single check is not sufficient: it may run between the
 * end of our backpressure and the next bytes.
 */
export function limitBodyTime(req: IncomingMessage, { totalMs, idleMs }: { totalMs: number; idleMs: number }): void {
  // A small body has arrived with its head.
  if (req.complete) return
  const { socket } = req
  const started = performance.now()
  let read = socket.bytesRead
  let idleChecks = 0
  const timer = setInterval(() => {
    // A non-empty buffer is our backpressure, not a pause of the sender.
    idleChecks = socket.bytesRead === read && req.readableLength === 0 ? idleChecks + 1 : 0
    read = socket.bytesRead
    if (!req.complete && idleChecks < IDLE_CHECKS && performance.now() - started <= totalMs) return
    clearInterval(timer)
    if (req.complete) return
    const error = Object.assign(new Error('request body timed out'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' })
    const { server } = socket as Socket & { server?: Server }
    server?.emit('clientError', error, socket)
  }, idleMs / IDLE_CHECKS)
  timer.unref()
  req.once('close', () => clearInterval(timer))
}

/**
 * Closes connections whose client reads nothing of the pending responses for longer than `idleMs`, with a tolerance of a
 * quarter. Measured by the bytes that the kernel took, so that a slow reader of one large response makes progress, and
 * bytes that the client sends meanwhile do not count. One timer per server: most connections have nothing pending.
 */
function limitReaderStall(server: Server, idleMs: number): void {
  const connections = new Map<Socket, { taken: number; idleChecks: number }>()
  server.on('connection', (socket: Socket) => {
    connections.set(socket, { taken: 0, idleChecks: 0 })
    socket.once('close', () => connections.delete(socket))
  })
  const timer = setInterval(() => {
    for (const [socket, state] of connections) {
      const taken = bytesTaken(socket)
      state.idleChecks = socket.writableLength > 0 && taken === state.taken ? state.idleChecks + 1 : 0
      state.taken = taken
      if (state.idleChecks >= IDLE_CHECKS) socket.destroy()
    }
  }, idleMs / IDLE_CHECKS)
  timer.unref()
  server.once('close', () => clearInterval(timer))
}

/** Returns the number of bytes that the kernel took from a socket. `bytesWritten` of the socket includes waiting bytes. */
function bytesTaken(socket: Socket): number {
  const handle = (socket as Socket & { _handle?: { bytesWritten: number; writeQueueSize: number } | null })._handle
  return handle ? handle.bytesWritten - handle.writeQueueSize : socket.bytesWritten
}

/** Requests that a connection may send before the response to an earlier one has ended. */
const PIPELINED_MAX = 100

/**
 * Serves the requests of a connection one after another. Node starts pipelined requests concurrently and keeps their
 * responses in memory, also while an earlier event stream is open. A connection with too many is closed.
 */
function serveInOrder(listener: RequestListener): RequestListener {
  const waiting = new WeakMap<Socket, (() => void)[]>()
  return (req, res) => {
    const { socket } = req
    const serve = () => {
      res.once('close', () => {
        const queue = waiting.get(socket)
        if (!socket.destroyed && queue?.length) queue.shift()?.()
        else waiting.delete(socket)
      })
      listener(req, res)
    }
    const queue = waiting.get(socket)
    if (!queue) {
      waiting.set(socket, [])
      serve()
    } else if (queue.push(serve) > PIPELINED_MAX) socket.destroy()
  }
}
