import cors from 'cors'
import type { Request, RequestHandler } from 'express'
import type { Config } from '../base/config.ts'

/** Access of pages of other origins, on all endpoints: by bearer credentials, never by cookies. */

/** The first user is created without a credential: `*` does not open it to every page that an operator visits. */
const BOOTSTRAP_PATH = '/api/v1/users/bootstrap'
/** The sign-in of the console, whose endpoints read a cookie. */
const CONSOLE_PATH = '/oauth/console/'

const MAX_HEADERS = 40
const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/

/** Returns the headers that a preflight requests; none if one of them is malformed or there are too many. */
function requestedHeaders(req: Request): string[] {
  const names = (req.headers['access-control-request-headers'] ?? '')
    .split(',')
    .map(name => name.trim())
    .filter(name => name !== '')
  return names.length <= MAX_HEADERS && names.every(name => HEADER_NAME.test(name)) ? names : []
}

/** Answers preflights, before authentication and without the database, and adds the headers to other responses. */
export function crossOrigin({ CORS_ALLOWED_ORIGINS, HEADER_PREFIX }: Config): RequestHandler {
  const isOpen = CORS_ALLOWED_ORIGINS.includes('*')
  const shared = {
    origin: isOpen ? '*' : CORS_ALLOWED_ORIGINS,
    exposedHeaders: [
      'ETag',
      'Retry-After',
      'Deprecation',
      'Link',
      'X-Request-Id',
      'Idempotency-Replayed',
      'WWW-Authenticate',
      'DPoP-Nonce',
      'Content-Disposition',
      'Content-Range',
      'x-should-retry',
      `${HEADER_PREFIX}Session-Id`,
      `${HEADER_PREFIX}Ignored-Params`,
    ],
    maxAge: 600,
  }
  return cors<Request>((req, done) => {
    const path = req.path.toLowerCase().replace(/(?<!\/)\/+$/, '')
    const isRefused = path === '/metrics' || path.startsWith(CONSOLE_PATH) || (isOpen && path === BOOTSTRAP_PATH)
    done(null, isRefused ? { origin: [] } : { ...shared, allowedHeaders: requestedHeaders(req) })
  })
}
