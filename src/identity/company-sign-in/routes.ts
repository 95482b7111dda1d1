import { type Express, type NextFunction, type Request, type Response, Router } from 'express'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { withIcon } from '#core/docs/icon.ts'
import { httpLayerError } from '#core/http/responses.ts'
import { signedCookie } from '../sign-in/signed-cookies.ts'
import type { SignInRequest } from '../users/sign-in-audit.ts'
import { LOGIN_MS, processLoginResponse, startLogin } from './login.ts'
import { isEnabled } from './provider.ts'

const PATH = '/oauth/oidc'

/** Paths of this deployment to which a sign-in may return. */
const RETURN_TO = /^(?:\/app\/callback|\/oauth\/consent\?request_id=oar_[\w-]{1,128})$/
const CHALLENGE = /^[\w-]{43}$/
const PROMPT = /^(?:login|consent|select_account)$/

const HEADERS = {
  'Cache-Control': 'no-store',
  'Content-Security-Policy':
    "default-src 'none'; frame-ancestors 'none'; img-src data:; base-uri 'none'; form-action 'none'",
  'Referrer-Policy': 'no-referrer',
  'X-Frame-Options': 'DENY',
}
const CORS_HEADERS = ['Access-Control-Allow-Origin', 'Access-Control-Expose-Headers', 'Vary']

/** Mounts the browser endpoints of company sign-in, if it is configured. */
export function mountCompanySignIn(app: Express, services: Services): void {
  const { config, log } = services
  if (!isEnabled(config)) return
  const loginCookie = signedCookie(config, { name: 'oidc_login', path: PATH, maxAgeMs: LOGIN_MS })
  const router = Router({ caseSensitive: true })

  router.use((_req: Request, res: Response, next: NextFunction) => {
    for (const name of CORS_HEADERS) res.removeHeader(name)
    res.set(HEADERS)
    next()
  })

  router.get('/start', async (req: Request, res: Response) => {
    const query = queryOf(req)
    const returnTo = requireParam(query, 'return_to', RETURN_TO)
    const challenge = requireParam(query, 'code_challenge', CHALLENGE)
    const prompt = query.has('prompt') ? requireParam(query, 'prompt', PROMPT) : null
    const started = await startLogin(services, { returnTo, challenge, prompt }, requestOf(req, res))
    if (started.kind === 'too_many') {
      res.setHeader('Retry-After', LOGIN_MS / 1000)
      return sendPage(res, 429, 'Too many unfinished sign-ins from your network. Try again later.')
    }
    if (started.kind === 'unavailable') {
      log.warn({ request_id: requestOf(req, res).id, err: started.error }, 'identity provider unavailable')
      return res.redirect(302, `${config.BASE_URL}${returnTo}#error=provider_error`)
    }
    loginCookie.set(res, started.cookie)
    res.redirect(302, started.url.href)
  })

  router.get('/callback', async (req: Request, res: Response) => {
    const cookie = loginCookie.read(req)
    const request = requestOf(req, res)
    const answered =
      cookie === null ? null : await processLoginResponse(services, { query: queryOf(req), cookie }, request)
    if (!answered) return sendPage(res, 400, 'This browser has no pending sign-in for this response. Sign in again.')
    // Kept until here because any site can send a browser to this address.
    loginCookie.clear(res)
    const { returnTo, outcome } = answered
    const result = 'code' in outcome ? `oidc_code=${outcome.code}` : `error=${outcome.error}`
    log.info(
      { request_id: request.id, outcome: 'code' in outcome ? 'code' : outcome.error },
      'company sign-in completed',
    )
    res.redirect(302, `${config.BASE_URL}${returnTo}#${result}`)
  })

  router.use((error: unknown, req: Request, res: Response, _next: NextFunction) => {
    const refused = httpLayerError(error)
    if (refused.code === 'INTERNAL_ERROR' && config.ERROR_LOGS_ENABLED)
      log.error({ request_id: requestOf(req, res).id, path: req.baseUrl + req.path, err: error }, 'request failed')
    for (const [name, value] of Object.entries(refused.headers ?? {})) res.setHeader(name, value)
    sendPage(res, refused.status, refused.message)
  })

  app.use(PATH, router)
}

/**
 * Returns the query as sent: a signed or repeated parameter must not be reinterpreted by the body parser of Express.
 */
const queryOf = (req: Request): URLSearchParams => new URLSearchParams(req.originalUrl.split('?').slice(1).join('?'))

/** Returns the single value of a parameter. @throws REQUEST_REJECTED */
function requireParam(query: URLSearchParams, name: string, pattern: RegExp): string {
  const [value, ...others] = query.getAll(name)
  if (value === undefined || others.length > 0 || !pattern.test(value))
    return raise('REQUEST_REJECTED', { message: `Sign-in URL has no valid ${name}` })
  return value
}

const requestOf = (req: Request, res: Response): SignInRequest => ({
  id: res.getHeader('X-Request-Id') as string,
  ip: req.ip ?? null,
  userAgent: req.headers['user-agent'] ?? null,
})

/** Sends a page with a fixed text, never with content of the request. */
function sendPage(res: Response, status: number, text: string): void {
  res
    .status(status)
    .type('html')
    .send(
      withIcon(
        `<!doctype html><html lang="en"><meta charset="utf-8"><title>Sign-in</title><h1>Sign-in</h1><p>${text}</p></html>`,
      ),
    )
}
