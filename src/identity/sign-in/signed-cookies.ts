import type { Request, Response } from 'express'
import type { Config } from '#core/base/config.ts'
import { basePath } from '#core/http/base-path.ts'
import { derivedKeys, isSigned, signatureOf } from '../tokens/signatures.ts'

/** Whether cookies are sent over https only. */
const isSecure = ({ BASE_URL }: Pick<Config, 'BASE_URL'>): boolean => BASE_URL.startsWith('https:')

/** Returns the name of a cookie of this deployment, with prefix `__Secure-` on https. */
export const cookieName = (config: Pick<Config, 'BASE_URL'>, name: string): string =>
  isSecure(config) ? `__Secure-${name}` : name

/** Cookie for some routes of this deployment, with its signature in a second cookie, `<name>.sig`. */
export type SignedCookie = {
  set(res: Response, value: string): void
  /** Returns the value sent by the browser; null if it is missing or its signature is invalid. */
  read(req: Request): string | null
  clear(res: Response): void
}

/**
 * Declares a cookie that scripts cannot read and that is sent from other sites only with links and redirects.
 * @param options.path below BASE_URL
 */
export function signedCookie(
  config: Pick<Config, 'BASE_URL' | 'JWT_SECRET' | 'JWT_SECRET_PREVIOUS'>,
  { name: plain, path, maxAgeMs }: { name: string; path: string; maxAgeMs: number },
): SignedCookie {
  const name = cookieName(config, plain)
  const keys = derivedKeys(config, 'cookies')
  const attributes = {
    httpOnly: true,
    sameSite: 'lax',
    secure: isSecure(config),
    path: `${basePath(config)}${path}`,
  } as const
  return {
    set(res, value) {
      res.cookie(name, value, { ...attributes, maxAge: maxAgeMs })
      res.cookie(`${name}.sig`, signatureOf(keys, `${name}=${value}`), { ...attributes, maxAge: maxAgeMs })
    },
    read(req) {
      const cookies = cookiesOf(req.headers.cookie)
      const value = cookies.get(name)
      if (value === undefined) return null
      return isSigned(keys, `${name}=${value}`, cookies.get(`${name}.sig`) ?? '') ? value : null
    },
    clear(res) {
      for (const each of [name, `${name}.sig`]) res.clearCookie(each, attributes)
    },
  }
}

/** Returns the cookies of a request by name. Of equal names the first one counts: it has the longest path. */
export function cookiesOf(header = ''): Map<string, string> {
  const cookies = new Map<string, string>()
  for (const pair of header.split(';')) {
    const at = pair.indexOf('=')
    const name = pair.slice(0, at).trim()
    if (at > 0 && !cookies.has(name)) cookies.set(name, pair.slice(at + 1).trim())
  }
  return cookies
}
