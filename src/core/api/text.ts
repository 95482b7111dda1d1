import { StringDecoder } from 'node:string_decoder'

/** The characters that are whole within the first `bytes` of a text in UTF-8; what is no UTF-8 becomes U+FFFD. */
export function firstBytes(text: string | Buffer, bytes: number): string {
  const whole = Buffer.isBuffer(text) ? text : Buffer.from(text)
  return whole.length > bytes ? new StringDecoder('utf8').write(whole.subarray(0, bytes)) : whole.toString()
}

/** The characters that are whole within the first `length` code units of a text. */
export const firstChars = (text: string, length: number): string =>
  text.length > length ? text.slice(0, length).replace(/[\ud800-\udbff]$/, '') : text
