import type { Express, NextFunction, Request, Response } from 'express'
import type { Config } from '../../config.ts'
import { countAnonymous } from '../../core/http/anonymous-bodies.ts'
import { limitBodyTime } from '../../core/http/server.ts'
import { RESOURCE_METADATA } from '../../core/iam/challenges.ts'
import { redactedPath } from '../../core/process/log.ts'
import { httpRequests, requestDuration } from '../../core/process/metrics.ts'
import type { Services } from '../../core/process/services.ts'
import { networkOf } from '../networks.ts'
import { basePath, cookiesOf } from '../signed-cookies.ts'
import { cookieNames } from './cookies.ts'
import { PROOF_ALGORITHMS } from './dpop.ts'
import { handlerOf } from './library.ts'
import { deviceCodesFull, isLimitSpent, type SpentLimit, sessionSubject, spendLimit, tokensRefused } from './limits.ts'
import { escapeHtml, PAGE_HEADERS, renderPage, staticFiles } from './pages.ts'
import { MCP_ACCESS } from './scopes.ts'

/** The protocol endpoints at the root, beside the API. */

/** Largest body that the library reads. */
const MAX_BODY_BYTES = 56 * 1024

type Route = {
  method: 'get' | 'post'
  path: string
  /** Of browsers: answers HTML, and scripts of other origins do not reach it. */
  page?: boolean
  /** The library's path, where it is another. */
  to?: string
  enabled?: (config: Config) => boolean
  /** Seconds until a limit of the sender is free again. */
  limit?: (services: Services, req: Request) => Promise<SpentLimit> | SpentLimit
}

const first = async (...checks: (() => Promise<SpentLimit>)[]): Promise<SpentLimit> => {
  for (const check of checks) {
    const seconds = await check()
    if (seconds !== null) return seconds
  }
  return null
}

const DISCOVERY = '/.well-known/oauth-authorization-server'
const OPENID_DISCOVERY = '/.well-known/openid-configuration'

const sender = (req: Request): string => networkOf(req.ip)

/** Each page that a browser opens without a session begins one, which is stored. */
const ofPages: Route['limit'] = (services, req) => spendLimit(services, 'page', sender(req))

/** Of what a client asks about its tokens: each request may be a fetch of its keys, and its assertion is remembered. */
const ofQuestions: Route['limit'] = async (services, req) =>
  tokensRefused(services, req.ip) ?? spendLimit(services, 'token_question', sender(req))

const withDevices = ({ OAUTH_DEVICE_ENABLED }: Config): boolean => OAUTH_DEVICE_ENABLED

const ROUTES: Route[] = [
  ...[DISCOVERY, OPENID_DISCOVERY].flatMap((path): Route[] => [
    { method: 'get', path },
    { method: 'get', path: `${path}/mcp`, to: path },
  ]),
  { method: 'get', path: '/oauth/jwks' },
  {
    method: 'get',
    path: '/oauth/authorize',
    page: true,
    limit: (services, req) => spendLimit(services, 'authorization', sender(req)),
  },
  { method: 'get', path: '/oauth/authorize/:uid', page: true, limit: ofPages },
  { method: 'post', path: '/oauth/end/confirm', page: true, limit: ofPages },
  { method: 'post', path: '/oauth/token', limit: (services, req) => tokensRefused(services, req.ip) },
  { method: 'post', path: '/oauth/revoke', limit: ofQuestions },
  { method: 'post', path: '/oauth/introspect', limit: ofQuestions },
  { method: 'get', path: '/oauth/userinfo' },
  { method: 'post', path: '/oauth/userinfo' },
  {
    method: 'post',
    path: '/oauth/register',
    enabled: ({ OAUTH_REGISTRATION_ENABLED }) => OAUTH_REGISTRATION_ENABLED,
    limit: (services, req) => spendLimit(services, 'registration', sender(req)),
  },
  {
    method: 'post',
    path: '/oauth/device_authorization',
    enabled: withDevices,
    limit: (services, req) =>
      first(
        () => spendLimit(services, 'device_authorization', sender(req)),
        () => deviceCodesFull(services, sender(req)),
      ),
  },
  { method: 'get', path: '/oauth/device', page: true, enabled: withDevices, limit: ofPages },
  {
    method: 'post',
    path: '/oauth/device',
    page: true,
    enabled: withDevices,
    limit: (services, req) =>
      first(
        () => spendLimit(services, 'page', sender(req)),
        () => isLimitSpent(services, 'user_code', sender(req)),
        () =>
          isLimitSpent(services, 'user_code_session', sessionSubject(sessionCookie(services.config, req)), sender(req)),
      ),
  },
  { method: 'get', path: '/oauth/device/:uid', page: true, enabled: withDevices, limit: ofPages },
]

/** Mounts discovery, the endpoints of the protocol and the pages. */
export function mountOauth(app: Express, services: Services): void {
  const { config, log } = services

  for (const suffix of ['', '/mcp'])
    app.get(
      `${RESOURCE_METADATA}${suffix}`,
      logged(services, `${RESOURCE_METADATA}${suffix}`),
      (_req: Request, res: Response) => {
        res.json({
          resource: `${config.BASE_URL}${suffix}`,
          authorization_servers: [config.BASE_URL],
          bearer_methods_supported: ['header'],
          scopes_supported: [MCP_ACCESS],
          dpop_signing_alg_values_supported: PROOF_ALGORITHMS,
        })
      },
    )

  for (const [path, { type, body }] of Object.entries(staticFiles(config)))
    app.get(path, logged(services, path), (_req: Request, res: Response) => {
      asPage(res)
      res.setHeader('Content-Type', type)
      res.end(body)
    })

  for (const route of ROUTES) {
    if (route.enabled && !route.enabled(config)) continue
    app[route.method](route.path, logged(services, route.path), (req: Request, res: Response, next: NextFunction) => {
      handle(services, route, req, res).catch(error => {
        log.debug({ err: error }, 'request of the OAuth endpoints failed')
        next(error)
      })
    })
  }
}

async function handle(services: Services, route: Route, req: Request, res: Response): Promise<void> {
  const { config } = services
  if (route.page) asPage(res)
  else {
    if (route.method === 'post') res.setHeader('Cache-Control', 'no-store')
    // Clients of these get the error bodies of the protocol, whatever they accept.
    req.headers.accept = 'application/json'
  }
  if (route.method === 'post') boundAnonymous(services, req, res)
  const seconds = await route.limit?.(services, req)
  if (seconds) return refuse(config, route, res, seconds)
  const handler = await handlerOf(services)
  // What the library builds addresses from: never what the request names.
  const { host, protocol } = new URL(config.BASE_URL)
  req.headers.host = host
  req.headers['x-forwarded-host'] = host
  req.headers['x-forwarded-proto'] = protocol.slice(0, -1)
  if (route.to) req.url = route.to
  req.originalUrl = basePath(config) + req.url
  await handler(req, res)
}

/** Bounds what a body costs that comes without a credential of ours. */
function boundAnonymous(services: Services, req: Request, res: Response): void {
  const { HTTP_ANONYMOUS_BODY_TIMEOUT_MS: totalMs, HTTP_IDLE_TIMEOUT_MS: idleMs } = services.config
  limitBodyTime(req, { totalMs, idleMs: Math.min(idleMs, totalMs) })
  const closed = new AbortController()
  res.once('close', () => closed.abort())
  const declared = Number(req.headers['content-length'] ?? MAX_BODY_BYTES)
  countAnonymous(services, `address ${req.ip}`, closed.signal)(Math.min(declared, MAX_BODY_BYTES))
}

function asPage(res: Response): void {
  for (const [name, value] of Object.entries(PAGE_HEADERS)) res.setHeader(name, value)
  res.removeHeader('Access-Control-Allow-Origin')
}

/** Refuses a sender whose limit is spent. */
function refuse(config: Config, { page }: Route, res: Response, seconds: number): void {
  res.statusCode = 429
  res.setHeader('Retry-After', seconds)
  const description = `Too many requests; try again in ${seconds} seconds`
  if (!page) {
    res.json({ error: 'temporarily_unavailable', error_description: description })
    return
  }
  res.setHeader('Content-Type', 'text/html; charset=utf-8')
  res.end(renderPage(config, 'Too many requests', `<p>${escapeHtml(description)}</p>`))
}

/** The session cookie that a browser sent, unverified. */
const sessionCookie = (config: Config, req: Request): string =>
  cookiesOf(req.headers.cookie).get(cookieNames(config).session) ?? ''

/** Writes the log line of a request and counts it. */
const logged =
  ({ log }: Services, route: string) =>
  (req: Request, res: Response, next: NextFunction): void => {
    const startedAt = performance.now()
    const path = redactedPath(req.originalUrl)
    res.once('finish', () => {
      const ms = performance.now() - startedAt
      const labels = { method: req.method, route, status: String(res.statusCode) }
      httpRequests.inc(labels)
      requestDuration.observe(labels, ms / 1000)
      const request_id = res.getHeader('X-Request-Id')
      log.info(
        { request_id, method: req.method, path, status: res.statusCode, ms: Math.round(ms * 10) / 10 },
        'request',
      )
    })
    next()
  }
