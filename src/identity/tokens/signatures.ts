import { createHmac, hkdfSync, timingSafeEqual } from 'node:crypto'
import type { Config } from '#core/base/config.ts'

type Secrets = Pick<Config, 'JWT_SECRET' | 'JWT_SECRET_PREVIOUS'>

/** Derives the keys of a purpose from JWT_SECRET and JWT_SECRET_PREVIOUS: the first one signs, all of them verify. */
export const derivedKeys = ({ JWT_SECRET, JWT_SECRET_PREVIOUS }: Secrets, purpose: string): Buffer[] =>
  [JWT_SECRET, JWT_SECRET_PREVIOUS].flatMap(secret =>
    secret ? [Buffer.from(hkdfSync('sha256', secret, '', `muster ${purpose}`, 32))] : [],
  )

const signatureBy = (key: Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest()

/** Returns the signature of a text by the first key, in base64url. */
export const signatureOf = ([key]: readonly Buffer[], text: string): string =>
  signatureBy(key, text).toString('base64url')

/** Whether a text was signed by one of the keys. */
export function isSigned(keys: readonly Buffer[], text: string, signature: string): boolean {
  const actual = Buffer.from(signature, 'base64url')
  return keys.some(key => {
    const expected = signatureBy(key, text)
    return actual.length === expected.length && timingSafeEqual(actual, expected)
  })
}
