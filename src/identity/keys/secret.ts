import { randomBytes } from 'node:crypto'
import { sha256Of } from '../../core/secrets/digest.ts'

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
const CHARACTERS = 43

/** A new key string, `sk_` and 256 random bits in base62, with what is stored of it. */
export function generateKey(): { key: string; hash: Buffer; prefix: string } {
  let rest = BigInt(`0x${randomBytes(32).toString('hex')}`)
  let digits = ''
  for (let index = 0; index < CHARACTERS; index++) {
    digits = ALPHABET[Number(rest % 62n)] + digits
    rest /= 62n
  }
  const key = `sk_${digits}`
  return { key, hash: sha256Of(key), prefix: key.slice(0, 11) }
}
