import type { IncomingMessage } from 'node:http'
import type { CookieOptions, Request, Response } from 'express'
import type { Config } from '#core/base/config.ts'
import { basePath } from '#core/http/base-path.ts'
import { cookieName, cookiesOf } from '../sign-in/signed-cookies.ts'

/**
 * The sign-in of the console: its refresh token is in a cookie, which two endpoints read and no script can. The page
 * sends `refresh_token=cookie` there, and the library gets the token of the cookie in its place.
 */

export const CONSOLE_PATH = '/oauth/console'

type Deployment = Pick<Config, 'BASE_URL'>

/** Name of the cookie. Browsers send cookies to all ports of a host: a deployment with a port has a separate name. */
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

/** Sets the refresh token of the browser; it is deleted when the token expires. */
export const setConsoleCookie = (config: Deployment, res: Response, token: string, seconds: number): void =>
  void res.cookie(nameOf(config), token, { ...attributesOf(config), maxAge: seconds * 1000 })

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

/** Refresh tokens of requests to the endpoints of the console; null without a cookie. */
const tokens = new WeakMap<IncomingMessage, string | null>()

/** Reads the cookie of a request to an endpoint of the console. */
export const readConsoleCookie = (config: Deployment, req: Request): void =>
  void tokens.set(req, cookiesOf(req.headers.cookie).get(nameOf(config)) ?? null)

/** Returns the refresh token of a request to the console's endpoints; undefined for requests to others. */
export const consoleToken = (ctx: { req: object } | undefined): string | null | undefined =>
  ctx && tokens.get(ctx.req as IncomingMessage)
