import { systemClock } from './clock.ts'
import { currentCell } from './current-cell.ts'
import { uniqueBytes } from './random-block.ts'

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz'

/** The last value of each cell; of no cell under -1. */
const sequences = new Map<number, { time: number; random: Buffer }>()

/** Position of the first random bit in an encoded value, and of the number of a cell after it. */
const FLAG_AT = 10
const FLAG = 0x80

/**
 * Returns the next 128-bit value: 48 bits of milliseconds, then 80 random bits, incremented within a millisecond. In a
 * deployment with cells the first random bit is 1, and the next 10 are the number of the cell.
 */
function nextBytes(now: number): Buffer {
  const cell = currentCell()
  let last = sequences.get(cell ?? -1)
  if (!last || now > last.time) {
    const random = uniqueBytes(10)
    // The bit after the fixed ones is cleared so that increments never overflow within a millisecond.
    if (cell === undefined) random[0] &= 0x7f
    else {
      random[0] = FLAG | (cell >> 3)
      random[1] = ((cell & 7) << 5) | (random[1] & 0x0f)
    }
    last = { time: now, random }
    sequences.set(cell ?? -1, last)
  } else {
    const { random } = last
    for (let index = 9; index >= 0; index--) {
      random[index] = (random[index] + 1) & 0xff
      if (random[index] !== 0) break
    }
  }
  const bytes = Buffer.allocUnsafe(16)
  bytes.writeUIntBE(last.time, 0, 6)
  last.random.copy(bytes, 6)
  return bytes
}

/** Encodes a value as 26 characters of lower-case Crockford base32, in ULID layout. */
function encode(bytes: Buffer): string {
  let out = ''
  let buffer = 0
  let bits = 2 // 130 bits are written for 128: two leading zero bits
  for (const byte of bytes) {
    buffer = (buffer << 8) | byte
    bits += 8
    while (bits >= 5) {
      bits -= 5
      out += ALPHABET[(buffer >> bits) & 31]
    }
    buffer &= (1 << bits) - 1
  }
  return out
}

/** Returns a new public id, `<prefix>_<26 characters>`. Ids that one process makes in a cell are strictly increasing. */
export const newId = (prefix: string): string => `${prefix}_${encode(nextBytes(systemClock.now().getTime()))}`

/** Returns the smallest possible id of a row created at `time`, for range queries by creation time. */
export function idFloor(prefix: string, time: Date): string {
  const bytes = Buffer.alloc(16)
  bytes.writeUIntBE(Math.max(0, time.getTime()), 0, 6)
  return `${prefix}_${encode(bytes)}`
}

/** Characters of an encoded value. */
const LENGTH = 26

const ID = /^[a-z]+(?:_[a-z]+)*_[0-9a-hjkmnp-tv-z]{26}$/

/** Whether a text has the form of IDs. */
export const isId = (text: string): boolean => ID.test(text)

/** Returns the number of the cell that made an ID; 0, for the first cell, if it has none. */
export function cellOfId(id: string): number {
  if (!isId(id)) return 0
  const [flag, high, low] = [...id.slice(FLAG_AT - LENGTH)].map(character => ALPHABET.indexOf(character))
  return flag & 16 ? ((flag & 15) << 6) | (high << 1) | (low >> 4) : 0
}

/** Characters of the secret part of a token. */
const SECRET = 43

/** Adds the number of the current cell to the secret part of a new token; not in the first cell. */
export function withCell(secret: string): string {
  if (secret.length !== SECRET) throw new Error('the secret part of a token has 43 characters')
  const cell = currentCell()
  return cell ? `${ALPHABET[cell >> 5]}${ALPHABET[cell & 31]}${secret}` : secret
}

const ANY_TOKEN = /^[a-z]+_[\w-]{43,45}$/

/** Whether a text has the form of tokens that may contain the number of a cell. */
export const isToken = (text: string): boolean => ANY_TOKEN.test(text)

const TOKEN = /^[a-z]+_([0-9a-hjkmnp-tv-z]{2})[\w-]{43}$/

/** Returns the number of the cell that made a token; 0, for the first cell, if it has none. */
export function cellOfToken(token: string): number {
  const [, digits] = TOKEN.exec(token) ?? []
  return digits ? ALPHABET.indexOf(digits[0]) * 32 + ALPHABET.indexOf(digits[1]) : 0
}
