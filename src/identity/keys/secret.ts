import { createHash, randomBytes } from 'node:crypto'

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
const CHARACTERS = 43

/** SHA-256 of a whole key string: what is stored and looked up. */
export const hashKey = (key: string): Buffer => createHash('sha256').update(key).digest()

/** A new key string, `sk_` and 256 random bits in base62, with what is stored of it. */
export function mintKey(): { key: string; hash: Buffer; prefix: string } {
  let rest = BigInt(`0x${randomBytes(32).toString('hex')}`)
  let digits = ''
  for (let index = 0; index < CHARACTERS; index++) {
    digits = ALPHABET[Number(rest % 62n)] + digits
    rest /= 62n
  }
  const key = `sk_${digits}`
  return { key, hash: hashKey(key), prefix: key.slice(0, 11) }
}
