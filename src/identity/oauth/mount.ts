import type { Express, NextFunction, Request, Response } from 'express'
import type { Config } from '#core/base/config.ts'
import { redactedPath } from '#core/base/log.ts'
import { httpRequests, requestDuration } from '#core/base/metrics.ts'
import type { Services } from '#core/base/services.ts'
import { countAnonymous } from '#core/http/anonymous-bodies.ts'
import { basePath } from '#core/http/base-path.ts'
import { limitBodyTime } from '#core/http/server.ts'
import { RESOURCE_METADATA } from '#core/iam/challenges.ts'
import { PROOF_ALGORITHMS } from '../grants/dpop.ts'
import { MCP_ACCESS } from '../grants/scopes.ts'
import { networkOf } from '../sign-in/networks.ts'
import { cookiesOf } from '../sign-in/signed-cookies.ts'
import { CONSOLE_PATH, isFromConsole, readConsoleCookie } from './console-cookie.ts'
import { cookieNames } from './cookies.ts'
import { handlerOf } from './library.ts'
import {
  checkDeviceCodeCapacity,
  findTokenBlock,
  isLimitSpent,
  type SpentLimit,
  sessionSubject,
  spendLimit,
} from './limits.ts'
import { escapeHtml, PAGE_HEADERS, renderPage, staticFiles } from './pages.ts'

/** Protocol endpoints at the root, alongside the API. */

/** Maximum body size of the library. */
const MAX_BODY_BYTES = 56 * 1024

type Route = {
  method: 'get' | 'post'
  path: string
  /** Whether browsers open it: returns HTML, and scripts of other origins cannot read it. */
  page?: boolean
  /** Whether only pages of the console may call it, with the cookie of their browser. */
  console?: boolean
  /** Path of the library, if it differs. */
  to?: string
  enabled?: (config: Config) => boolean
  /** Returns the seconds until a limit of the sender resets. */
  limit?: (services: Services, req: Request) => Promise<SpentLimit> | SpentLimit
}

const firstSpentLimit = async (...checks: (() => Promise<SpentLimit>)[]): Promise<SpentLimit> => {
  for (const check of checks) {
    const seconds = await check()
    if (seconds !== null) return seconds
  }
  return null
}

const DISCOVERY = '/.well-known/oauth-authorization-server'
const OPENID_DISCOVERY = '/.well-known/openid-configuration'

const sender = (req: Request): string => networkOf(req.ip)

/** Limits pages: each page opened without a session creates and stores one. */
const limitPages: Route['limit'] = (services, req) => spendLimit(services, 'page', sender(req))

/** Limits token introspection and revocation: each request may fetch the client's keys and store its assertion. */
const limitTokenQueries: Route['limit'] = async (services, req) =>
  findTokenBlock(services, req.ip) ?? spendLimit(services, 'token_question', sender(req))

const isDeviceFlowEnabled = ({ OAUTH_DEVICE_ENABLED }: Config): boolean => OAUTH_DEVICE_ENABLED

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
  { method: 'get', path: '/oauth/authorize/:uid', page: true, limit: limitPages },
  { method: 'post', path: '/oauth/end/confirm', page: true, limit: limitPages },
  { method: 'post', path: '/oauth/token', limit: (services, req) => findTokenBlock(services, req.ip) },
  { method: 'post', path: '/oauth/revoke', limit: limitTokenQueries },
  ...['token', 'revoke'].map(
    (name): Route => ({
      method: 'post',
      path: `${CONSOLE_PATH}/${name}`,
      console: true,
      to: `/oauth/${name}`,
      enabled: ({ CONSOLE_ENABLED }) => CONSOLE_ENABLED,
      limit: name === 'revoke' ? limitTokenQueries : (services, req) => findTokenBlock(services, req.ip),
    }),
  ),
  {
    method: 'post',
    path: '/oauth/introspect',
    enabled: ({ OAUTH_INTROSPECTION_ENABLED }) => OAUTH_INTROSPECTION_ENABLED,
    limit: limitTokenQueries,
  },
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
    enabled: isDeviceFlowEnabled,
    limit: (services, req) =>
      firstSpentLimit(
        () => spendLimit(services, 'device_authorization', sender(req)),
        () => checkDeviceCodeCapacity(services, sender(req)),
      ),
  },
  { method: 'get', path: '/oauth/device', page: true, enabled: isDeviceFlowEnabled, limit: limitPages },
  {
    method: 'post',
    path: '/oauth/device',
    page: true,
    enabled: isDeviceFlowEnabled,
    limit: (services, req) =>
      firstSpentLimit(
        () => spendLimit(services, 'page', sender(req)),
        () => isLimitSpent(services, 'user_code', sender(req)),
        () =>
          isLimitSpent(services, 'user_code_session', sessionSubject(sessionCookie(services.config, req)), sender(req)),
      ),
  },
  { method: 'get', path: '/oauth/device/:uid', page: true, enabled: isDeviceFlowEnabled, limit: limitPages },
]

/** Mounts discovery, the protocol endpoints and the pages. */
export function mountOauth(app: Express, services: Services): void {
  const { config, log } = services

  for (const suffix of ['', '/mcp'])
    app.get(
      `${RESOURCE_METADATA}${suffix}`,
      logRequest(services, `${RESOURCE_METADATA}${suffix}`),
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
    app.get(path, logRequest(services, path), (_req: Request, res: Response) => {
      setPageHeaders(res)
      res.setHeader('Content-Type', type)
      res.end(body)
    })

  for (const route of ROUTES) {
    if (route.enabled && !route.enabled(config)) continue
    app[route.method](
      route.path,
      logRequest(services, route.path),
      (req: Request, res: Response, next: NextFunction) => {
        handleRequest(services, route, req, res).catch(error => {
          log.debug({ err: error }, 'OAuth request failed')
          next(error)
        })
      },
    )
  }
}

async function handleRequest(services: Services, route: Route, req: Request, res: Response): Promise<void> {
  const { config } = services
  if (route.page) setPageHeaders(res)
  else {
    if (route.method === 'post') res.setHeader('Cache-Control', 'no-store')
    // Clients of these endpoints get the protocol's error bodies, regardless of their Accept header.
    req.headers.accept = 'application/json'
  }
  if (route.console) {
    if (!isFromConsole(config, req)) return respondToStranger(res)
    readConsoleCookie(services, req)
  }
  if (route.method === 'post') limitAnonymousBody(services, req, res)
  const seconds = await route.limit?.(services, req)
  if (seconds) return respondTooMany(config, route, res, seconds)
  const handler = await handlerOf(services)
  // The library builds URLs from these headers: they never come from the request.
  const { host, protocol } = new URL(config.BASE_URL)
  req.headers.host = host
  req.headers['x-forwarded-host'] = host
  req.headers['x-forwarded-proto'] = protocol.slice(0, -1)
  if (route.to) req.url = route.to
  req.originalUrl = basePath(config) + req.url
  await handler(req, res)
}

/** Limits the cost of a body sent without one of our credentials. */
function limitAnonymousBody(services: Services, req: Request, res: Response): void {
  const { HTTP_ANONYMOUS_BODY_TIMEOUT_MS: totalMs, HTTP_IDLE_TIMEOUT_MS: idleMs } = services.config
  limitBodyTime(req, { totalMs, idleMs: Math.min(idleMs, totalMs) })
  const closed = new AbortController()
  res.once('close', () => closed.abort())
  const declared = Number(req.headers['content-length'] ?? MAX_BODY_BYTES)
  countAnonymous(services, `address ${req.ip}`, closed.signal)(Math.min(declared, MAX_BODY_BYTES))
}

function setPageHeaders(res: Response): void {
  for (const [name, value] of Object.entries(PAGE_HEADERS)) res.setHeader(name, value)
  res.removeHeader('Access-Control-Allow-Origin')
}

/** Refuses a request to an endpoint of the console that no page of the deployment sent. */
function respondToStranger(res: Response): void {
  res.statusCode = 403
  res.json({ error: 'access_denied', error_description: 'only the console of this deployment may call this endpoint' })
}

/** Responds with 429 to a sender whose limit is exhausted. */
function respondTooMany(config: Config, { page }: Route, res: Response, seconds: number): void {
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

/** Returns the session cookie sent by a browser, unverified. */
const sessionCookie = (config: Config, req: Request): string =>
  cookiesOf(req.headers.cookie).get(cookieNames(config).session) ?? ''

/** Logs and counts a request. */
const logRequest =
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
