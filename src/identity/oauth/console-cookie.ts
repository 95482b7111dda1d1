import type { IncomingMessage } from 'node:http'
import type { CookieOptions, Request, Response } from 'express'
import type { Config } from '#core/base/config.ts'
import type { Services } from '#core/base/services.ts'
import { basePath } from '#core/http/base-path.ts'
import { createSecretBox, type SecretBox } from '#core/secrets/secretbox.ts'
import { cookieName } from '../sign-in/signed-cookies.ts'

/**
 * The sign-in of the console: its refresh token is in a cookie, which two endpoints read and no script can. The page
 * sends `refresh_token=cookie` there, and the library gets the token of the cookie in its place. Browsers send cookies
 * to all ports of a host, whose servers may be hostile: the cookie is sealed by a key that the page stores for its
 * origin and sends in a header, so that neither of them is of use without the other.
 */

export const CONSOLE_PATH = '/oauth/console'

/** Header with the key of the page: 32 random bytes in base64url. */
const KEY_HEADER = 'muster-console-key'
const KEY = /^[\w-]{43}$/

type Deployment = Pick<Config, 'BASE_URL'>

/** A request to an endpoint of the console. */
type ConsoleRequest = {
  /** Seals the cookie; null without a key. */
  box: SecretBox | null
  /** Refresh token; null without a cookie that the key opens. */
  token: string | null
  hasCookie: boolean
}

/** Name of the cookie: deployments at several ports of a host have separate ones. */
function nameOf(config: Deployment): string {
  const { port } = new URL(config.BASE_URL)
  return cookieName(config, port ? `console_refresh_${port}` : 'console_refresh')
}

/** Browsers accept `Secure` of loopback addresses without https as well; the console opens nowhere else without it. */
const attributesOf = (config: Deployment): CookieOptions => ({
  httpOnly: true,
  secure: true,
  sameSite: 'strict',
  path: `${basePath(config)}${CONSOLE_PATH}`,
})

const sealedFor = (config: Deployment) => ({ kind: 'console_cookie', id: nameOf(config), project_id: null })

/** Returns the box of a page, by its key and by the secret of the deployment: only the deployment makes cookies. */
function boxOf({ secrets }: Pick<Services, 'secrets'>, key: unknown): SecretBox | null {
  if (typeof key !== 'string' || !KEY.test(key)) return null
  const [current, ...previous] = secrets
    .derived('console cookie', key)
    .map(each => Buffer.from(each, 'base64url').toString('hex'))
  return createSecretBox({ key: current, previous })
}

/** Sets the refresh token of the browser; it is deleted when the token expires. */
export function setConsoleCookie(
  config: Deployment,
  res: Response,
  { box }: ConsoleRequest,
  token: string,
  seconds: number,
): void {
  if (!box) throw new Error('a page of the console without a key gets no tokens')
  res.cookie(nameOf(config), box.seal(token, sealedFor(config)), { ...attributesOf(config), maxAge: seconds * 1000 })
}

export const clearConsoleCookie = (config: Deployment, res: Response): void =>
  void res.clearCookie(nameOf(config), attributesOf(config))

/**
 * Whether a page of the deployment sent the request. Browsers send both headers with each POST and no page can forge
 * them; a cookie of `SameSite=Strict` alone would admit other ports and subdomains.
 */
export function isFromConsole({ BASE_URL }: Deployment, { headers }: Request): boolean {
  const site = headers['sec-fetch-site']
  return headers.origin === new URL(BASE_URL).origin && (site === undefined || site === 'same-origin')
}

const requests = new WeakMap<IncomingMessage, ConsoleRequest>()

/**
 * Reads the cookie of a request to an endpoint of the console. Other ports and subdomains can plant cookies of its
 * name: the first cookie that the key opens counts.
 */
export function readConsoleCookie({ config, secrets }: Services, req: Request): void {
  const box = boxOf({ secrets }, req.headers[KEY_HEADER])
  const prefix = `${nameOf(config)}=`
  const values = (req.headers.cookie ?? '')
    .split(';')
    .map(pair => pair.trim())
    .filter(pair => pair.startsWith(prefix))
    .map(pair => pair.slice(prefix.length))
  const opened = box ? values.map(value => box.open(value, sealedFor(config))).find(({ ok }) => ok) : undefined
  requests.set(req, { box, token: opened?.ok ? opened.value : null, hasCookie: values.length > 0 })
}

/** Returns the facts of a request to the console's endpoints; undefined for requests to others. */
export const consoleRequest = (ctx: { req: object } | undefined): ConsoleRequest | undefined =>
  ctx && requests.get(ctx.req as IncomingMessage)
