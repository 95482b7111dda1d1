import { hash } from 'node:crypto'

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
 * Where a feature goes: its first four hash bytes, shifted left by one, and its sign, the last bit of the fifth, below.
 * Hashing one takes 0.4 microseconds; as hexadecimal digits half as much again.
 */
function place(feature: string): number {
  const bytes = hash('sha256', feature, 'binary')
  const at = (index: number) => bytes.charCodeAt(index)
  return (at(0) * 2 ** 24 + at(1) * 2 ** 16 + at(2) * 2 ** 8 + at(3)) * 2 + (at(4) & 1)
}

/** A feature, and how often it is in the text that counted it last. */
type Feature = { place: number; text: number; times: number }

type Word = Feature & { id: number; trigrams: Feature[] }

const feature = (name: string): Feature => ({ place: place(name), text: 0, times: 0 })

/** Features of a dictionary, about 10 MB, after which the next text begins another one. */
const DICTIONARY_SIZE = 100_000

/** Words with their trigrams, which repeat from text to text; pairs of words hardly ever do. */
class Dictionary {
  size = 0
  readonly #words = new Map<string, Word>()
  readonly #trigrams = new Map<string, Feature>()

  word(word: string): Word {
    const known = this.#words.get(word)
    if (known) return known
    // Code points, so that no letter is cut in two.
    const letters = Array.from(`_${word}_`)
    const trigrams = letters.slice(2).map((letter, at) => this.#trigram(`c:${letters[at]}${letters[at + 1]}${letter}`))
    const made = { ...feature(`w:${word}`), id: this.#words.size, trigrams }
    // A copy: a piece of a text would keep all of it.
    this.#words.set(Buffer.from(word).toString(), made)
    this.size += 1 + trigrams.length
    return made
  }

  #trigram(name: string): Feature {
    const known = this.#trigrams.get(name)
    if (known) return known
    const made = feature(name)
    this.#trigrams.set(name, made)
    return made
  }
}

let dictionary = new Dictionary()
let texts = 0

/** The L2-normalized vector of a text; all zeros for a text without letters and digits. */
export function localVector(text: string, dimensions: number): Float32Array {
  const words =
    text
      .normalize('NFKC')
      .toLowerCase()
      .match(/[\p{L}\p{Nd}]+/gu) ?? []
  if (dictionary.size > DICTIONARY_SIZE) dictionary = new Dictionary()
  texts += 1
  // Each in the order in which they come first: another order of sums would round otherwise.
  const single: Feature[] = []
  const trigrams: Feature[] = []
  const pairs = new Map<number, { at: number; times: number }>()
  const count = (one: Feature, found: Feature[]) => {
    if (one.text !== texts) {
      one.text = texts
      one.times = 0
      found.push(one)
    }
    one.times += 1
  }
  let before = -1
  for (const [at, name] of words.entries()) {
    const word = dictionary.word(name)
    count(word, single)
    for (const trigram of word.trigrams) count(trigram, trigrams)
    const key = before * 2 ** 26 + word.id
    const pair = pairs.get(key)
    if (pair) pair.times += 1
    else if (at > 0) pairs.set(key, { at, times: 1 })
    before = word.id
  }
  const sums = new Float64Array(dimensions)
  const add = (to: number, times: number, weight: number) => {
    const value = weight * (1 + Math.log(times))
    sums[Math.floor(to / 2) % dimensions] += to % 2 === 1 ? -value : value
  }
  for (const { place, times } of single) add(place, times, WORD)
  for (const { place, times } of trigrams) add(place, times, TRIGRAM)
  for (const { at, times } of pairs.values()) add(place(`b:${words[at - 1]} ${words[at]}`), times, PAIR)
  return normalize(sums) as Float32Array
}

/** A vector of length 1; all zeros stay. Null when it holds what is no number. */
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
