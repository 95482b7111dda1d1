import { StringDecoder } from 'node:string_decoder'

/** The characters that are whole within the first `bytes` of a text in UTF-8; what is no UTF-8 becomes U+FFFD. */
export function firstBytes(text: string | Buffer, bytes: number): string {
  const whole = Buffer.isBuffer(text) ? text : Buffer.from(text)
  return whole.length > bytes ? new StringDecoder('utf8').write(whole.subarray(0, bytes)) : whole.toString()
}

/** The characters that are whole within the first `length` code units of a text. */
export const firstChars = (text: string, length: number): string =>
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
