import type { Readable } from 'node:stream'
import type { Request, Response } from 'express'
import { extensionPoint } from '../declarations.ts'
import type { Caller } from '../iam/caller.ts'
import type { RequestFacts } from '../invoke/call.ts'
import type { Services } from '../process/services.ts'

/** One request of a mount. What `serve` throws is answered in the error shape. */
export type MountExchange = {
  req: Request
  res: Response
  request: RequestFacts
  /** What the log line of the request says besides. */
  noted: Record<string, unknown>
  /** Resolves the bearer credential as of now; null without a valid one. */
  identify(): Promise<Caller | null>
  /** Reads the JSON body of an identified caller; undefined without one. */
  readJson(): Promise<unknown>
  /** Ends the response with JSON text, or without a body, and writes the log line of the request. */
  end(status: number, text: string | null): void
  /** Ends the response with a stream. */
  stream(status: number, contentType: string, stream: Readable): void
}

/** An endpoint beside the operations that speaks a protocol of its own, for all HTTP methods of its path. */
export type Mount = {
  path: string
  serve(services: Services, exchange: MountExchange): Promise<void>
}

export const mounts = extensionPoint<Mount>('mounts')
