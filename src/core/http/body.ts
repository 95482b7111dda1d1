import type { IncomingMessage, ServerResponse } from 'node:http'
import express, { type Request, type RequestHandler, type Response } from 'express'
import { AppError } from '../base/errors.ts'
import { parseExactJson } from '../base/exact-json.ts'
import { limitJson } from '../base/json-limits.ts'
import type { CountBytes } from './anonymous-bodies.ts'

/** Maximum body size of a request without a valid credential. */
export const UNKNOWN_BODY_BYTES = 64 * 1024
/** Time for a client to read the response to a body that is not read. */
const LINGER_MS = 1000

/** Reads the JSON body of a request into `req.body`. Rejects for an invalid body and for errors of `count`. */
export type JsonReader = (req: Request, res: Response, count?: CountBytes) => Promise<void>

/** Returns a reader of JSON bodies of at most `limit` decoded bytes, whatever their content type. */
export function jsonReader(limit: number): JsonReader {
  const read = textReader(limit)
  return (req, res, count) =>
    new Promise((resolve, reject) => {
      // The parser would read an oversized body to its end before it fails.
      let remaining = limit
      req.on('data', (chunk: Buffer) => {
        remaining -= chunk.length
        if (remaining < 0) return reject(tooLarge())
        try {
          count?.(chunk.length)
        } catch (error) {
          reject(error)
        }
      })
      if (declaredLength(req) > limit) return reject(tooLarge())
      read(req, res, error => {
        if (error) return reject(error)
        try {
          if (req.body !== undefined) req.body = req.body === '' ? {} : parseExactJson(req.body)
          resolve()
        } catch (problem) {
          reject(Object.assign(problem as SyntaxError, { type: 'entity.parse.failed' }))
        }
      })
    })
}

const textReader = (limit: number): RequestHandler =>
  express.text({
    limit,
    type: () => true,
    verify(_req, _res, bytes, encoding) {
      if (encoding !== 'utf-8')
        throw new AppError('REQUEST_REJECTED', {
          status: 415,
          message: `unsupported charset "${encoding.toUpperCase()}"`,
        })
      limitJson(bytes)
    },
  })

/** Error of a request whose client disconnected: never read, but it must not count as an internal failure. */
export const CLIENT_GONE = new AppError('REQUEST_REJECTED', { status: 400, message: 'The client disconnected' })

/** Returns the refusal of a body without a credential: 413 if its declared length exceeds UNKNOWN_BODY_BYTES. */
export function anonymousBodyError(req: IncomingMessage): AppError {
  return declaredLength(req) > UNKNOWN_BODY_BYTES ? tooLarge() : new AppError('UNAUTHORIZED')
}

const declaredLength = (req: IncomingMessage): number => Number(req.headers['content-length'] ?? 0)

const tooLarge = () => new AppError('REQUEST_REJECTED', { status: 413, message: 'request entity too large' })

/**
 * Closes the connection after a response sent without reading the body. At most 64 KiB of it are consumed. The close is
 * delayed by a second, because closing with unread bytes resets the connection before the client has read the response.
 */
export function rejectBody(req: IncomingMessage, res: ServerResponse): void {
  if (req.complete) return
  const { socket } = req
  res.setHeader('Connection', 'close')
  let remaining = UNKNOWN_BODY_BYTES
  req.on('data', (chunk: Buffer) => {
    remaining -= chunk.length
    if (remaining <= 0) req.pause()
  })
  socket.destroySoon = () => {
    socket.end()
    setTimeout(() => socket.destroy(), LINGER_MS).unref()
  }
}
