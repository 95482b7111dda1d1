import { randomBytes } from 'node:crypto'

const BLOCK_BYTES = 4096

let block = Buffer.alloc(0)
let used = 0

/**
 * Returns random bytes for values that are unique but not secret, such as IDs and initialization vectors. A call of the
 * system's generator takes 2 µs for any length, a part of a block 0.2 µs. Each byte is returned once, and its memory is never
 * filled again; each thread and process has separate blocks. Keys and tokens must not lie in memory before they are used:
 * they take `randomBytes`.
 */
export function uniqueBytes(count: number): Buffer {
  if (used + count > block.length) {
    block = randomBytes(Math.max(BLOCK_BYTES, count))
    used = 0
  }
  const bytes = block.subarray(used, used + count)
  used += count
  return bytes
}
