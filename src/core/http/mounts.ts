import type { Readable } from 'node:stream'
import type { Request, Response } from 'express'
import type { RequestFacts } from '../api/call.ts'
import { extensionPoint } from '../base/declarations.ts'
import type { Services } from '../base/services.ts'
import type { Caller } from '../iam/caller.ts'

/** A request of a mount. Errors thrown by `serve` are sent in the standard error body. */
export type MountExchange = {
  req: Request
  res: Response
  request: RequestFacts
  /** Additional fields of the request's log line. */
  noted: Record<string, unknown>
  /**
   * Authenticates the bearer credential and counts the request of a key of a project; null without a valid one. A mount that
   * finds the project of another key counts by `request.count`, unless a call does.
   * @throws QUOTA_EXCEEDED
   */
  identify(): Promise<Caller | null>
  /** Reads the JSON body of an authenticated caller; undefined if it is empty. */
  readJson(): Promise<unknown>
  /** Ends the response with JSON text, or without a body, and writes the log line of the request. */
  end(status: number, text: string | null): void
  /** Ends the response with a stream. */
  stream(status: number, contentType: string, stream: Readable): void
}

/** An endpoint of another protocol, for all HTTP methods of its path, which may end with a wildcard. */
export type Mount = {
  path: string
  /** Largest JSON body; default HTTP_JSON_LIMIT_BYTES. */
  bodyLimit?: number
  /** Whether tokens of end users are accepted; otherwise they are no valid credential. */
  endUsers?: boolean
  serve(services: Services, exchange: MountExchange): Promise<void>
}

type MountRequest = { services: Pick<Services, 'config'>; exchange: Pick<MountExchange, 'req' | 'res'> }

/** Returns the value of a request header with the prefix of the deployment; undefined if it is missing or empty. */
export function serviceHeader({ services, exchange }: MountRequest, name: string): string | undefined {
  const value = exchange.req.headers[`${services.config.HEADER_PREFIX}${name}`.toLowerCase()]
  return typeof value === 'string' && value !== '' ? value : undefined
}

/** Sets a response header with the prefix of the deployment. */
export const setServiceHeader = ({ services, exchange }: MountRequest, name: string, value: string): void =>
  void exchange.res.setHeader(`${services.config.HEADER_PREFIX}${name}`, value)

export const mounts = extensionPoint<Mount>({
  name: 'mounts',
  folder: 'core/http',
  description: 'Serves another protocol under a path',
})
