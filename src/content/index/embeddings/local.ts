import { hash } from 'node:crypto'

/**
 * Built-in embedding by feature hashing: no model, no network, the same vector on every host. Features are words,
 * trigrams and word pairs, not meanings. Any change here changes every vector and requires another model name.
 */
export const LOCAL_MODEL = 'local-hash-v1'

const WORD = 1
const TRIGRAM = 0.5
const PAIR = 0.7

/** Maximum time between yields to the event loop. */
const SLICE_MS = 10

/**
 * Returns the position of a feature: its first four hash bytes, shifted left by one, plus its sign, the last bit of the
 * fifth byte. Takes 0.4 microseconds; hashing to hexadecimal digits would take half as much again.
 */
function hashPosition(feature: string): number {
  const bytes = hash('sha256', feature, 'binary')
  const at = (index: number) => bytes.charCodeAt(index)
  return (at(0) * 2 ** 24 + at(1) * 2 ** 16 + at(2) * 2 ** 8 + at(3)) * 2 + (at(4) & 1)
}

/** A feature and its number of occurrences in the last text that contained it. */
type Feature = { position: number; text: number; times: number }

type Word = Feature & { id: number; trigrams: Feature[] }

const createFeature = (name: string): Feature => ({ position: hashPosition(name), text: 0, times: 0 })

/** Maximum number of features in a dictionary, about 10 MB, after which a new one is started. */
const DICTIONARY_SIZE = 100_000

/** Cache of words with their trigrams, which repeat across texts; pairs of words rarely do. */
class Dictionary {
  size = 0
  readonly #words = new Map<string, Word>()
  readonly #trigrams = new Map<string, Feature>()

  word(word: string): Word {
    const cached = this.#words.get(word)
    if (cached) return cached
    // By code points, so that no surrogate pair is split.
    const letters = Array.from(`_${word}_`)
    const trigrams = letters.slice(2).map((letter, at) => this.#trigram(`c:${letters[at]}${letters[at + 1]}${letter}`))
    const entry = { ...createFeature(`w:${word}`), id: this.#words.size, trigrams }
    // A copy: a slice would retain the whole text.
    this.#words.set(Buffer.from(word).toString(), entry)
    this.size += 1 + trigrams.length
    return entry
  }

  #trigram(name: string): Feature {
    const cached = this.#trigrams.get(name)
    if (cached) return cached
    const entry = createFeature(name)
    this.#trigrams.set(name, entry)
    return entry
  }
}

let dictionary = new Dictionary()
let texts = 0

/** Returns the L2-normalized vector of a text; all zeros for a text without letters and digits. */
export function localVector(text: string, dimensions: number): Float32Array {
  const words =
    text
      .normalize('NFKC')
      .toLowerCase()
      .match(/[\p{L}\p{Nd}]+/gu) ?? []
  if (dictionary.size > DICTIONARY_SIZE) dictionary = new Dictionary()
  texts += 1
  // In order of first occurrence: another order of the sums would round differently.
  const single: Feature[] = []
  const trigrams: Feature[] = []
  const pairs = new Map<number, { at: number; times: number }>()
  const count = (feature: Feature, counted: Feature[]) => {
    if (feature.text !== texts) {
      feature.text = texts
      feature.times = 0
      counted.push(feature)
    }
    feature.times += 1
  }
  let previous = -1
  for (const [at, name] of words.entries()) {
    const word = dictionary.word(name)
    count(word, single)
    for (const trigram of word.trigrams) count(trigram, trigrams)
    const key = previous * 2 ** 26 + word.id
    const pair = pairs.get(key)
    if (pair) pair.times += 1
    else if (at > 0) pairs.set(key, { at, times: 1 })
    previous = word.id
  }
  const sums = new Float64Array(dimensions)
  const add = (position: number, times: number, weight: number) => {
    const value = weight * (1 + Math.log(times))
    sums[Math.floor(position / 2) % dimensions] += position % 2 === 1 ? -value : value
  }
  for (const { position, times } of single) add(position, times, WORD)
  for (const { position, times } of trigrams) add(position, times, TRIGRAM)
  for (const { at, times } of pairs.values()) add(hashPosition(`b:${words[at - 1]} ${words[at]}`), times, PAIR)
  return normalize(sums) as Float32Array
}

/** Scales a vector to length 1; all zeros are unchanged. Returns null for a vector with values that are not finite. */
export function normalize(values: ArrayLike<number>): Float32Array | null {
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

/** Embeds texts in order until `mayContinue` returns false; the rest is null. Yields to the event loop every 10 ms. */
export async function localVectors(
  texts: readonly string[],
  dimensions: number,
  mayContinue: () => boolean,
): Promise<(Float32Array | null)[]> {
  const vectors: (Float32Array | null)[] = texts.map(() => null)
  let since = performance.now()
  for (const [index, text] of texts.entries()) {
    if (!mayContinue()) break
    vectors[index] = localVector(text, dimensions)
    if (performance.now() - since > SLICE_MS) {
      await new Promise(resolve => setImmediate(resolve))
      since = performance.now()
    }
  }
  return vectors
}
