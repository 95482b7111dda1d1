import { createHash } from 'node:crypto'
import { CODES_AT, CODES_BYTES, DISTANCES_AT, differences, memory, QUERY_AT } from './hamming-wasm.ts'

/**
 * Sign-bit codes of vectors (code version 1): the vector is rotated twice by random signs and a Walsh-Hadamard
 * transform, and the sign of each coordinate is a bit. The rotation distributes the information of vectors with few
 * significant coordinates over all bits; signs of the unrotated vector lose up to nine in ten neighbours. Two vectors
 * differ in about `angle / pi` of their bits.
 */
export const CODE_VERSION = 1

const ROUNDS = 2
const MIN_BITS = 2048

const paddedLength = (dimensions: number): number => 2 ** Math.ceil(Math.log2(dimensions))

/** Returns the length of codes in bits: 2048, above 2048 dimensions 4096. */
export const codeBits = (dimensions: number): number => Math.max(MIN_BITS, paddedLength(dimensions))

/** Signs of all repetitions and rounds by padded length; about 32 KiB per length. */
const signsByLength = new Map<number, Float64Array>()

function signsOf(padded: number): Float64Array {
  const cached = signsByLength.get(padded)
  if (cached) return cached
  const repetitions = Math.max(1, MIN_BITS / padded)
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
  signsByLength.set(padded, signs)
  return signs
}

/** Transforms in place. Omits the factor 1/sqrt(length), which changes no sign and would prevent exact cancellation. */
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

/** Returns the rotated coordinates of a vector, one per bit of its code. */
function rotate(vector: Float32Array): Float64Array {
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
 * Returns the code of a vector, most significant bit first. Takes about 40 microseconds for 1,024 dimensions.
 * @param vector 32 to 4096 dimensions, not necessarily normalized
 */
export function codeBytes(vector: Float32Array): Buffer {
  const coordinates = rotate(vector)
  const code = Buffer.alloc(coordinates.length / 8)
  for (let bit = 0; bit < coordinates.length; bit++) if (coordinates[bit] > 0) code[bit >> 3] |= 128 >> (bit & 7)
  return code
}

/** Returns the code of a vector as a PostgreSQL `bit varying` literal: `x` and hexadecimal digits. */
export const codeOf = (vector: Float32Array): string => `x${codeBytes(vector).toString('hex')}`

const shared = new Uint8Array(memory.buffer)

/**
 * Counts the bits in which codes differ from the code of a query. Codes are copied to WebAssembly memory, a megabyte at
 * a time, which takes as long as the comparison; outside it, they can be garbage-collected like any other array.
 * @param codes consecutive codes, each as long as `queryCode`
 * @param distances receives the counts of the rows from `from` to `to`, exclusive
 */
export function hammingDistances(
  codes: Uint8Array,
  queryCode: Uint8Array,
  distances: Uint16Array,
  { from, to }: { from: number; to: number },
): void {
  const bytes = queryCode.length
  const step = Math.floor(CODES_BYTES / bytes)
  shared.set(queryCode, QUERY_AT)
  for (let row = from; row < to; row += step) {
    const part = codes.subarray(row * bytes, Math.min(to, row + step) * bytes)
    shared.set(part, CODES_AT)
    differences(CODES_AT, CODES_AT + part.length, QUERY_AT, QUERY_AT + bytes, DISTANCES_AT)
    distances.set(new Uint16Array(memory.buffer, DISTANCES_AT, part.length / bytes), row)
  }
}

/** Sums for each value of each byte of a code, for the current query; a quarter of a megabyte, reused. */
let sums = new Float32Array(0)

/**
 * Estimates the similarity of rows to a query vector from their codes: the sum of the rotated coordinates of the query,
 * with the signs of the row's bits. The exact query vector halves the error compared to the distance of two codes.
 * @param vector query vector
 * @param codes consecutive codes
 * @param rows indexes of the codes to estimate
 * @returns one estimate per row, which increases with the cosine and has no other meaning
 */
export function estimateCosines(vector: Float32Array, codes: Uint8Array, rows: readonly number[]): Float64Array {
  const coordinates = rotate(vector)
  const bytes = coordinates.length / 8
  if (sums.length < bytes * 256) sums = new Float32Array(bytes * 256)
  for (let byte = 0; byte < bytes; byte++) {
    let none = 0
    for (let bit = 0; bit < 8; bit++) none -= coordinates[byte * 8 + bit]
    sums[byte * 256] = none
    // The sum of a value is the sum without its lowest bit, plus that bit.
    for (let value = 1; value < 256; value++) {
      const lowest = 31 - Math.clz32(value & -value)
      sums[byte * 256 + value] = sums[byte * 256 + (value & (value - 1))] + 2 * coordinates[byte * 8 + 7 - lowest]
    }
  }
  const estimates = new Float64Array(rows.length)
  for (let index = 0; index < rows.length; index++) {
    const start = rows[index] * bytes
    // Four independent sums for instruction-level parallelism.
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
    estimates[index] = first + second + (third + fourth)
  }
  return estimates
}
