import { hash } from 'node:crypto'

/** Allowed dimensions of an embedding. */
export const minDims = 8
export const maxDims = 4096

/**
 * Returns the vector of a text: its words (weight 1) and pairs of adjacent words (0.5), hashed to signed dimensions,
 * summed, normalised to length 1 and rounded to 7 decimals. Texts with common words are closer. A text without words
 * gets the first unit vector.
 */
export function embedText(text: string, dims: number): number[] {
  const words =
    text
      .normalize('NFKC')
      .toLowerCase()
      .match(/[\p{L}\p{Nd}]+/gu) ?? []
  const vector = new Array<number>(dims).fill(0)
  for (const [index, word] of words.entries()) {
    addFeature(vector, word, 1)
    if (index > 0) addFeature(vector, `${words[index - 1]} ${word}`, 0.5)
  }
  return normalise(vector)
}

/** Returns a vector padded with 0 or cut to `dims`, normalised to length 1. */
export function pinnedVector(values: readonly number[], dims: number): number[] {
  const vector = new Array<number>(dims).fill(0)
  for (let index = 0; index < Math.min(dims, values.length); index += 1) vector[index] = values[index]
  return normalise(vector)
}

/** Encodes a vector as Base64 of little-endian float32. */
export function toBase64(vector: readonly number[]): string {
  const bytes = Buffer.alloc(vector.length * 4)
  for (const [index, value] of vector.entries()) bytes.writeFloatLE(value, index * 4)
  return bytes.toString('base64')
}

function addFeature(vector: number[], feature: string, weight: number): void {
  const digest = hash('sha256', feature, 'buffer')
  const index = digest.readUInt32BE(0) % vector.length
  vector[index] += digest[4] & 1 ? -weight : weight
}

function normalise(vector: number[]): number[] {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0))
  if (length === 0) return vector.map((_, index) => (index === 0 ? 1 : 0))
  // Adding 0 converts -0 to 0.
  return vector.map(value => Math.round((value / length) * 1e7) / 1e7 + 0)
}
