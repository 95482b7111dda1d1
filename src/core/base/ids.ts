import { systemClock } from './clock.ts'
import { uniqueBytes } from './random-block.ts'

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz'

let lastTime = 0
let random = uniqueBytes(10)

/** Returns the next 128-bit value: 48 bits of milliseconds, then 80 random bits, incremented within a millisecond. */
function nextBytes(now: number): Buffer {
  if (now > lastTime) {
    lastTime = now
    random = uniqueBytes(10)
    // The top bit is cleared so that increments never overflow within a millisecond.
    random[0] &= 0x7f
  } else {
    for (let index = 9; index >= 0; index--) {
      random[index] = (random[index] + 1) & 0xff
      if (random[index] !== 0) break
    }
  }
  const bytes = Buffer.allocUnsafe(16)
  bytes.writeUIntBE(lastTime, 0, 6)
  random.copy(bytes, 6)
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

/** Returns a new public id, `<prefix>_<26 characters>`. Ids of one process are strictly increasing. */
export const newId = (prefix: string): string => `${prefix}_${encode(nextBytes(systemClock.now().getTime()))}`

/** Returns the smallest possible id of a row created at `time`, for range queries by creation time. */
export function idFloor(prefix: string, time: Date): string {
  const bytes = Buffer.alloc(16)
  bytes.writeUIntBE(Math.max(0, time.getTime()), 0, 6)
  return `${prefix}_${encode(bytes)}`
}
