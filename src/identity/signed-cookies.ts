import { createHmac, hkdfSync, timingSafeEqual } from 'node:crypto'
import type { Request, Response } from 'express'
import type { Config } from '../config.ts'

type Keys = Pick<Config, 'JWT_SECRET' | 'JWT_SECRET_PREVIOUS'>

/** The keys that sign cookies, derived from JWT_SECRET and JWT_SECRET_PREVIOUS; the first one signs. */
const cookieKeys = ({ JWT_SECRET, JWT_SECRET_PREVIOUS }: Keys): Buffer[] =>
  [JWT_SECRET, JWT_SECRET_PREVIOUS].flatMap(secret =>
    secret ? [Buffer.from(hkdfSync('sha256', secret, '', 'muster cookies', 32))] : [],
  )

const signatureOf = (key: Buffer, name: string, value: string): Buffer =>
  createHmac('sha256', key).update(`${name}=${value}`).digest()

/** A cookie of a few routes of this deployment, with its signature in a second cookie, `<name>.sig`. */
export type SignedCookie = {
  set(res: Response, value: string): void
  /** The value that the browser sent; null without one, and for one that this deployment has not signed. */
  read(req: Request): string | null
  clear(res: Response): void
}

/**
 * Declares a cookie that scripts cannot read and that other sites send only by a link or a redirect. On https its name
 * starts with `__Secure-`.
 * @param options.path below BASE_URL
 */
export function signedCookie(
  config: Keys & Pick<Config, 'BASE_URL'>,
  { name: plain, path, maxAgeMs }: { name: string; path: string; maxAgeMs: number },
): SignedCookie {
  const base = new URL(config.BASE_URL)
  const secure = base.protocol === 'https:'
  const name = secure ? `__Secure-${plain}` : plain
  const keys = cookieKeys(config)
  const attributes = {
    httpOnly: true,
    sameSite: 'lax',
    secure,
    path: `${base.pathname.replace(/\/$/, '')}${path}`,
  } as const
  return {
    set(res, value) {
      res.cookie(name, value, { ...attributes, maxAge: maxAgeMs })
      res.cookie(`${name}.sig`, signatureOf(keys[0], name, value).toString('base64url'), {
        ...attributes,
        maxAge: maxAgeMs,
      })
    },
    read(req) {
      const sent = cookiesOf(req.headers.cookie)
      const value = sent.get(name)
      const signature = Buffer.from(sent.get(`${name}.sig`) ?? '', 'base64url')
      if (value === undefined) return null
      const isSigned = keys.some(key => {
        const expected = signatureOf(key, name, value)
        return signature.length === expected.length && timingSafeEqual(signature, expected)
      })
      return isSigned ? value : null
    },
    clear(res) {
      for (const each of [name, `${name}.sig`]) res.clearCookie(each, attributes)
    },
  }
}

/** The cookies of a request by name. Of several with one name the first counts, which is of the longest path. */
function cookiesOf(header = ''): Map<string, string> {
  const cookies = new Map<string, string>()
  for (const pair of header.split(';')) {
    const at = pair.indexOf('=')
    const name = pair.slice(0, at).trim()
    if (at > 0 && !cookies.has(name)) cookies.set(name, pair.slice(at + 1).trim())
  }
  return cookies
}
