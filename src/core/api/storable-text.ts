import { StringDecoder } from 'node:string_decoder'

/** The characters that are whole within the first `bytes` of a text in UTF-8; what is no UTF-8 becomes U+FFFD. */
export function truncateBytes(text: string | Buffer, bytes: number): string {
  const whole = Buffer.isBuffer(text) ? text : Buffer.from(text)
  return whole.length > bytes ? new StringDecoder('utf8').write(whole.subarray(0, bytes)) : whole.toString()
}

/** The characters that are whole within the first `length` code units of a text. */
export const truncateChars = (text: string, length: number): string =>
  text.length > length ? text.slice(0, length).replace(/[\ud800-\udbff]$/, '') : text

/**
 * A text that the database can hold: halves of surrogate pairs become U+FFFD.
 * @param nul what takes the place of NUL characters
 */
export const storableText = (text: string, nul = '\u{fffd}'): string => text.replaceAll('\0', nul).toWellFormed()

/** The same for every key and string of a JSON value, such as the arguments a model made up. */
export function storableValue(value: unknown): unknown {
  if (typeof value === 'string') return storableText(value)
  if (Array.isArray(value)) return value.map(storableValue)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [storableText(key), storableValue(item)]))
}

type Units = Uint8Array | Uint16Array

/**
 * Finds the occurrences of a sequence in another one, also those that overlap, by the algorithm of Knuth, Morris and Pratt.
 * @param onFound gets the index behind an occurrence
 * @returns the length of the longest start of `sought` that ends the text
 */
export function findAll(text: Units, sought: Units, onFound: (end: number) => void): number {
  // For each length of a start of `sought`, the longest shorter start that it ends with. More than the text has is not needed.
  const fallbacks = new Uint32Array(Math.min(sought.length, text.length + 1))
  const follow = (units: Units, index: number, matched: number): number => {
    let length = matched
    while (length > 0 && sought[length] !== units[index]) length = fallbacks[length - 1]
    return sought[length] === units[index] ? length + 1 : length
  }
  for (let index = 1; index < fallbacks.length; index++) fallbacks[index] = follow(sought, index, fallbacks[index - 1])
  let matched = 0
  for (let index = 0; index < text.length; index++) {
    matched = follow(text, index, matched)
    if (matched < sought.length) continue
    onFound(index + 1)
    matched = fallbacks[matched - 1]
  }
  return matched
}

/** Longest part in UTF-16 units for which `includes` is as quick in the worst case: 10 ns a unit of the text. */
const SHORT_PART = 64

/**
 * Whether a text holds another one, in time linear in both. `includes` compares the whole part at every position of some
 * texts: 40 s for 64 KiB of letters in 4 MiB of them.
 */
export function holdsText(text: string, part: string): boolean {
  if (part.length <= SHORT_PART) return text.includes(part)
  let found = false
  findAll(unitsOf(text), unitsOf(part), () => {
    found = true
  })
  return found
}

const unitsOf = (text: string): Uint16Array => {
  const { buffer, byteOffset } = Buffer.from(text, 'utf16le')
  return new Uint16Array(buffer, byteOffset, text.length)
}
