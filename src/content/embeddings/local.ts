import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'

/**
 * The built-in embedder: no model, no network, the same vector on every host. It knows words, parts of
 * words and word pairs, not meanings. Changing anything here changes every vector: that needs another model name.
 */
export const LOCAL_MODEL = 'local-hash-v1'

const WORD = 1
const TRIGRAM = 0.5
const PAIR = 0.7

/** The event loop is let go after so long. */
const SLICE_MS = 10

/**
 * Where a feature goes: its first four hash bytes, shifted left by one, and its sign below. Words and trigrams repeat
 * from text to text, pairs hardly ever do; hashing one takes 0.8 microseconds.
 */
const places = new LRUCache<string, number>({ max: 100_000 })

function place(feature: string): number {
  const hex = hash('sha256', feature, 'hex')
  return Number.parseInt(hex.slice(0, 8), 16) * 2 + (Number.parseInt(hex[9], 16) & 1)
}

function knownPlace(feature: string): number {
  let found = places.get(feature)
  if (found === undefined) {
    found = place(feature)
    places.set(feature, found)
  }
  return found
}

const count = (counts: Map<string, number>, feature: string) => counts.set(feature, (counts.get(feature) ?? 0) + 1)

/** The L2-normalized vector of a text; all zeros for a text without letters and digits. */
export function localVector(text: string, dimensions: number): Float32Array {
  const words =
    text
      .normalize('NFKC')
      .toLowerCase()
      .match(/[\p{L}\p{Nd}]+/gu) ?? []
  const wordCounts = new Map<string, number>()
  const trigrams = new Map<string, number>()
  const pairs = new Map<string, number>()
  for (const [index, word] of words.entries()) {
    count(wordCounts, `w:${word}`)
    if (index > 0) count(pairs, `b:${words[index - 1]} ${word}`)
    // Code points, so that no letter is cut in two.
    const letters = Array.from(`_${word}_`)
    for (let at = 2; at < letters.length; at++) count(trigrams, `c:${letters[at - 2]}${letters[at - 1]}${letters[at]}`)
  }
  const sums = new Float64Array(dimensions)
  const add = (counts: Map<string, number>, weight: number, placeOf: (feature: string) => number) => {
    for (const [feature, times] of counts) {
      const at = placeOf(feature)
      const value = weight * (1 + Math.log(times))
      sums[Math.floor(at / 2) % dimensions] += at % 2 === 1 ? -value : value
    }
  }
  add(wordCounts, WORD, knownPlace)
  add(trigrams, TRIGRAM, knownPlace)
  add(pairs, PAIR, place)
  return normalized(sums) as Float32Array
}

/** A vector of length 1; all zeros stay. Null when it holds what is no number. */
export function normalized(values: ArrayLike<number>): Float32Array | null {
  let sum = 0
  for (let index = 0; index < values.length; index++) sum += values[index] * values[index]
  if (!Number.isFinite(sum)) return null
  const vector = new Float32Array(values.length)
  if (sum === 0) return vector
  const length = Math.sqrt(sum)
  for (let index = 0; index < values.length; index++) vector[index] = values[index] / length
  return vector
}

export const isZero = (vector: Float32Array): boolean => vector.every(value => value === 0)

/** Vectors of texts in their order, until `goOn` says no; what is left then stays null. Others get their turn meanwhile. */
export async function localVectors(
  texts: readonly string[],
  dimensions: number,
  goOn: () => boolean,
): Promise<(Float32Array | null)[]> {
  const vectors: (Float32Array | null)[] = texts.map(() => null)
  let since = performance.now()
  for (const [index, text] of texts.entries()) {
    if (!goOn()) break
    vectors[index] = localVector(text, dimensions)
    if (performance.now() - since > SLICE_MS) {
      await new Promise(resolve => setImmediate(resolve))
      since = performance.now()
    }
  }
  return vectors
}
