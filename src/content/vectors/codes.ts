import { createHash } from 'node:crypto'
import { CODES_AT, CODES_BYTES, differences as compare, DISTANCES_AT, memory, QUESTION_AT } from './hamming-wasm.ts'

/**
 * Sign-bit codes of vectors (code version 1): the vector is rotated twice by random signs and a Walsh-Hadamard transform,
 * and each coordinate gives the bit "greater than zero". The rotation spreads what an embedding model puts into few
 * coordinates, or a hashing one into few non-zero ones, over all bits; signs of the vector itself lose up to nine in ten
 * neighbours of such vectors. Two vectors differ in about `angle / pi` of their bits.
 */
export const CODE_VERSION = 1

const ROUNDS = 2
const LEAST_BITS = 2048

const paddedLength = (dimensions: number): number => 2 ** Math.ceil(Math.log2(dimensions))

/** Length in bits of the codes of vectors with so many dimensions: 2048, above 2048 dimensions 4096. */
export const codeBits = (dimensions: number): number => Math.max(LEAST_BITS, paddedLength(dimensions))

/** Signs of every repetition and round for one padded length, one after the other; about 32 KiB a length. */
const streams = new Map<number, Float64Array>()

function signsOf(padded: number): Float64Array {
  const known = streams.get(padded)
  if (known) return known
  const repetitions = Math.max(1, LEAST_BITS / padded)
  const signs = new Float64Array(repetitions * ROUNDS * padded)
  let at = 0
  for (let repetition = 0; repetition < repetitions; repetition++) {
    for (let round = 0; round < ROUNDS; round++) {
      for (let block = 0; block * 256 < padded; block++) {
        const digest = createHash('sha256').update(`v1:${repetition}:${round}:${block}`).digest()
        for (let bit = 0; bit < Math.min(256, padded); bit++)
          signs[at++] = (digest[bit >> 3] >> (7 - (bit & 7))) & 1 ? -1 : 1
      }
    }
  }
  streams.set(padded, signs)
  return signs
}

/** In place. Without the factor 1/sqrt(length), which changes no sign and would round what cancels exactly. */
function walshHadamard(values: Float64Array): void {
  const { length } = values
  for (let half = 1; half < length; half *= 2) {
    for (let start = 0; start < length; start += 2 * half) {
      for (let index = start; index < start + half; index++) {
        const left = values[index]
        const right = values[index + half]
        values[index] = left + right
        values[index + half] = left - right
      }
    }
  }
}

/** The rotated coordinates of a vector, one for each bit of its code. */
function rotated(vector: Float32Array): Float64Array {
  const padded = paddedLength(vector.length)
  const signs = signsOf(padded)
  const coordinates = new Float64Array(codeBits(vector.length))
  const values = new Float64Array(padded)
  let at = 0
  for (let start = 0; start < coordinates.length; start += padded) {
    values.fill(0)
    values.set(vector)
    for (let round = 0; round < ROUNDS; round++) {
      for (let index = 0; index < padded; index++) values[index] *= signs[at++]
      walshHadamard(values)
    }
    coordinates.set(values, start)
  }
  return coordinates
}

/**
 * The code of a vector, the first bit highest in the first byte. Takes about 40 microseconds for 1,024 dimensions.
 * @param vector of 32 to 4096 dimensions; its length does not matter, so it need not be normalized
 */
export function codeBytes(vector: Float32Array): Buffer {
  const coordinates = rotated(vector)
  const code = Buffer.alloc(coordinates.length / 8)
  for (let bit = 0; bit < coordinates.length; bit++) if (coordinates[bit] > 0) code[bit >> 3] |= 128 >> (bit & 7)
  return code
}

/** The code of a vector as PostgreSQL reads a `bit varying`: `x` and hexadecimal digits, the first bit leftmost. */
export const codeOf = (vector: Float32Array): string => `x${codeBytes(vector).toString('hex')}`

const shared = new Uint8Array(memory.buffer)

/**
 * Counts the bits in which codes differ from a question's. The codes are copied to where WebAssembly reads them, a megabyte at
 * a time, which takes as long as to compare them; where they are, they can be dropped and collected like any other array.
 * @param codes one after the other, each as long as the question's
 * @param distances takes the counts of the rows from `from` up to, without, `to`
 */
export function hammingDistances(
  codes: Uint8Array,
  question: Uint8Array,
  distances: Uint16Array,
  { from, to }: { from: number; to: number },
): void {
  const bytes = question.length
  const step = Math.floor(CODES_BYTES / bytes)
  shared.set(question, QUESTION_AT)
  for (let row = from; row < to; row += step) {
    const part = codes.subarray(row * bytes, Math.min(to, row + step) * bytes)
    shared.set(part, CODES_AT)
    compare(CODES_AT, CODES_AT + part.length, QUESTION_AT, QUESTION_AT + bytes, DISTANCES_AT)
    distances.set(new Uint16Array(memory.buffer, DISTANCES_AT, part.length / bytes), row)
  }
}

/** What each value of each byte of a code adds up to, of one question at a time: a quarter of a megabyte, kept. */
let sums = new Float32Array(0)

/**
 * Estimates how near rows are to a question from their codes: the question's rotated coordinates, added where a row's bit is
 * set and subtracted where it is not. It knows the question exactly, so it errs half as much as the distance of two codes.
 * @param vector the question
 * @param codes one after the other
 * @param rows which of them to estimate
 * @returns one estimate for each of `rows`; it grows with the cosine and means nothing else
 */
export function estimateCosines(vector: Float32Array, codes: Uint8Array, rows: readonly number[]): Float64Array {
  const coordinates = rotated(vector)
  const bytes = coordinates.length / 8
  if (sums.length < bytes * 256) sums = new Float32Array(bytes * 256)
  for (let byte = 0; byte < bytes; byte++) {
    let none = 0
    for (let bit = 0; bit < 8; bit++) none -= coordinates[byte * 8 + bit]
    sums[byte * 256] = none
    // A value is one with its lowest bit cleared, and that bit.
    for (let value = 1; value < 256; value++) {
      const lowest = 31 - Math.clz32(value & -value)
      sums[byte * 256 + value] = sums[byte * 256 + (value & (value - 1))] + 2 * coordinates[byte * 8 + 7 - lowest]
    }
  }
  const found = new Float64Array(rows.length)
  for (let index = 0; index < rows.length; index++) {
    const start = rows[index] * bytes
    // Four sums, which a processor adds at the same time.
    let first = 0
    let second = 0
    let third = 0
    let fourth = 0
    for (let byte = 0; byte < bytes; byte += 4) {
      first += sums[byte * 256 + codes[start + byte]]
      second += sums[byte * 256 + 256 + codes[start + byte + 1]]
      third += sums[byte * 256 + 512 + codes[start + byte + 2]]
      fourth += sums[byte * 256 + 768 + codes[start + byte + 3]]
    }
    found[index] = first + second + (third + fourth)
  }
  return found
}
