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
import { AppError, errorBody } from './errors.ts'
import { type Logger, withoutCredentials } from './log.ts'

/** Statuses of what node's parser refuses; anything else is 400. */
const STATUS_OF: Record<string, number> = {
  ERR_HTTP_REQUEST_TIMEOUT: 408,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  HPE_HEADER_OVERFLOW: 431,
}

const REQUEST_ID = /^[\x21-\x7e]{1,128}$/

/** The request's own id when the client sent a sane one that is no credential, else a new one (conventions, 1). */
export function requestIdOf(req: IncomingMessage): string {
  const sent = req.headers['x-request-id']
  return typeof sent === 'string' && REQUEST_ID.test(sent) && withoutCredentials(sent) === sent ? sent : randomUUID()
}

/**
 * A server whose own refusals (bad request line, bad method, headers over size, a request that never ends) are
 * REQUEST_REJECTED in the error shape (conventions, 2), each with a request id and a log line.
 */
export function openServer(listener: RequestListener, options: { docsBaseUrl: string; log: Logger }): Server {
  const { docsBaseUrl, log } = options
  // Without a Host header a request is as good as with one: nothing here depends on it.
  const server = createServer({ requireHostHeader: false }, listener)
  server.keepAliveTimeout = 65_000
  server.headersTimeout = 66_000

  const refusal = (status: number, message: string) => {
    const requestId = randomUUID()
    log.info({ request_id: requestId, status, reason: message }, 'request')
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

  const refuseSocket = (socket: Socket, status: number, message: string) => {
    const { text, headers } = refusal(status, message)
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
    socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('\r\n')}\r\n\r\n${text}`)
  }

  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // An answer that has begun cannot be followed by another one on its connection.
    const answering = (socket as Socket & { _httpMessage?: ServerResponse })._httpMessage?.headersSent
    if (error.code === 'ECONNRESET' || !socket.writable || answering) return void socket.destroy()
    const status = STATUS_OF[error.code ?? ''] ?? 400
    refuseSocket(socket as Socket, status, STATUS_CODES[status] as string)
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
