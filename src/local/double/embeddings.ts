import { hash } from 'node:crypto'

/** Dimensions an embedding may have. */
export const minDims = 8
export const maxDims = 4096

/**
 * The vector of a text: its words (weight 1 each) and adjacent pairs (0.5) hashed to signed dimensions, summed, of
 * length 1, rounded to 7 decimals. Texts that share words are nearer. A text without words is the first unit vector.
 */
export function embedText(text: string, dims: number): number[] {
  const words =
    text
      .normalize('NFKC')
      .toLowerCase()
      .match(/[\p{L}\p{Nd}]+/gu) ?? []
  const vector = new Array<number>(dims).fill(0)
  for (const [index, word] of words.entries()) {
    add(vector, word, 1)
    if (index > 0) add(vector, `${words[index - 1]} ${word}`, 0.5)
  }
  return normalise(vector)
}

/** A given vector, padded with 0 or cut to `dims`, of length 1. */
export function pinnedVector(values: readonly number[], dims: number): number[] {
  const vector = new Array<number>(dims).fill(0)
  for (let index = 0; index < Math.min(dims, values.length); index += 1) vector[index] = values[index]
  return normalise(vector)
}

/** Base64 of a vector as little-endian float32. */
export function toBase64(vector: readonly number[]): string {
  const bytes = Buffer.alloc(vector.length * 4)
  for (const [index, value] of vector.entries()) bytes.writeFloatLE(value, index * 4)
  return bytes.toString('base64')
}

function add(vector: number[], feature: string, weight: number): void {
  const digest = hash('sha256', feature, 'buffer')
  const index = digest.readUInt32BE(0) % vector.length
  vector[index] += digest[4] & 1 ? -weight : weight
}

function normalise(vector: number[]): number[] {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0))
  if (length === 0) return vector.map((_, index) => (index === 0 ? 1 : 0))
  // Adding 0 turns -0 into 0.
  return vector.map(value => Math.round((value / length) * 1e7) / 1e7 + 0)
}
