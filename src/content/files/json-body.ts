import type { Readable } from 'node:stream'
import { AppError, invalid } from '../../core/api/errors.ts'

/**
 * JSON with one long string in it, read as it arrives: the string goes on in pieces, the rest is small and parsed at the
 * end. Parsed as a whole, a body is held five times over: as bytes, joined, as text, as a value, decoded.
 */

const QUOTE = 0x22
const BACKSLASH = 0x5c
const NONE = Buffer.alloc(0)

const malformed = (): never => {
  throw new SyntaxError('is not JSON')
}

const tooLong = (message: string) => new AppError('REQUEST_REJECTED', { status: 413, message })

/** Which token of the outermost object comes next, as far as it matters. */
type Expected = 'key' | 'value' | 'other'

export class JsonBody {
  readonly #source: AsyncIterator<Buffer>
  readonly #name: string
  readonly #maxBytes: number
  readonly #maxRestBytes: number
  #read = 0
  /** What came and was not looked at yet. */
  #ahead: Buffer = NONE
  /** The JSON without the text of the string. */
  readonly #kept: Buffer[] = []
  #keptBytes = 0
  #depth = 0
  #inObject = false
  #inString = false
  #escaped = false
  #expected: Expected = 'other'
  /** The key that is being read, or was read last. */
  #key = ''
  #inKey = false

  /**
   * @param options.name key of the string
   * @param options.maxRestBytes bounds everything but its text
   */
  constructor(source: Readable, options: { name: string; maxBytes: number; maxRestBytes: number }) {
    this.#source = source[Symbol.asyncIterator]()
    this.#name = options.name
    this.#maxBytes = options.maxBytes
    this.#maxRestBytes = options.maxRestBytes
  }

  /** Reads up to the string; false at the end of the body. Raises REQUEST_REJECTED 413. */
  async find(): Promise<boolean> {
    for (;;) {
      const piece = await this.#next()
      if (!piece) return false
      const end = this.#scan(piece)
      this.#keep(piece.subarray(0, end ?? piece.length))
      if (end !== null) {
        this.#ahead = piece.subarray(end)
        return true
      }
    }
  }

  /** The text of the string that was found, byte by byte as characters, up to its closing quote. */
  async *text(): AsyncGenerator<string> {
    let begun: Buffer = NONE
    for (;;) {
      const came = await this.#next()
      if (!came) return malformed()
      const piece = begun.length > 0 ? Buffer.concat([begun, came]) : came
      begun = NONE
      let text = ''
      let quote = -1
      for (let at = 0; at < piece.length; ) {
        if (quote < at) quote = piece.indexOf(QUOTE, at)
        if (quote < 0) quote = piece.length
        const backslash = piece.subarray(at, quote).indexOf(BACKSLASH)
        const end = backslash < 0 ? quote : at + backslash
        const plain = piece.toString('latin1', at, end)
        // White space of JSON strings is escaped.
        if (/[\t\n\r]/.test(plain)) malformed()
        text += plain
        at = end
        if (at === quote) {
          if (at === piece.length) break
          this.#ahead = piece.subarray(at)
          if (text !== '') yield text
          return
        }
        const after = at + (piece[at + 1] === 0x75 ? 6 : 2)
        if (after > piece.length) {
          begun = piece.subarray(at)
          break
        }
        text += JSON.parse(`"${piece.toString('latin1', at, after)}"`)
        at = after
      }
      if (text !== '') yield text
    }
  }

  /** The body with an empty string for the text that was given; undefined when there was none. */
  value(): unknown {
    const text = new TextDecoder().decode(Buffer.concat(this.#kept))
    return text === '' ? undefined : JSON.parse(text)
  }

  async #next(): Promise<Buffer | null> {
    if (this.#ahead.length > 0) {
      const ahead = this.#ahead
      this.#ahead = NONE
      return ahead
    }
    const { done, value } = await this.#source.next()
    if (done) return null
    this.#read += value.length
    if (this.#read > this.#maxBytes) throw tooLong(`The body is larger than ${this.#maxBytes} bytes`)
    return value
  }

  /** Keeps a copy: a part of a piece would keep the whole of it. */
  #keep(bytes: Buffer): void {
    this.#keptBytes += bytes.length
    if (this.#keptBytes > this.#maxRestBytes)
      throw tooLong(`What comes beside ${this.#name} is larger than ${this.#maxRestBytes} bytes`)
    this.#kept.push(Buffer.from(bytes))
  }

  /** Looks at a piece; answers where the string's text begins in it, null when it does not. */
  #scan(piece: Buffer): number | null {
    for (let at = 0; at < piece.length; at++) {
      const byte = piece[at]
      const character = String.fromCharCode(byte)
      if (this.#inString) {
        if (this.#inKey) this.#key += character
        if (this.#escaped) this.#escaped = false
        else if (byte === BACKSLASH) this.#escaped = true
        else if (byte === QUOTE) {
          this.#inString = false
          this.#inKey = false
        }
        continue
      }
      if (byte === QUOTE) {
        this.#inString = true
        this.#inKey = this.#expected === 'key'
        if (this.#inKey) this.#key = character
        if (this.#expected === 'value' && this.#isNamed()) {
          this.#expected = 'other'
          return at + 1
        }
        this.#expected = 'other'
      } else if (character === '{' || character === '[') {
        if (this.#depth === 0) this.#inObject = character === '{'
        this.#depth++
        this.#expect('key')
      } else if (character === '}' || character === ']') {
        this.#depth--
        this.#expected = 'other'
      } else if (character === ',') this.#expect('key')
      else if (character === ':') this.#expect('value')
      else if (byte > 0x20) this.#expected = 'other'
    }
    return null
  }

  #expect(expected: Expected): void {
    this.#expected = this.#depth === 1 && this.#inObject ? expected : 'other'
  }

  /** Whether the key that was read last is the string's; keys may be escaped. */
  #isNamed(): boolean {
    try {
      return JSON.parse(this.#key) === this.#name
    } catch {
      return false
    }
  }
}

/**
 * The bytes of base64 text that comes in pieces: either alphabet, white space ignored, padding optional. Raises
 * VALIDATION_FAILED.
 */
export async function* decodeBase64(pieces: AsyncIterable<string>): AsyncGenerator<Buffer> {
  const refuse = (): never => invalid({ code: 'INVALID_VALUE', path: 'content', message: 'must be base64' })
  let digits = ''
  let padding = 0
  for await (const piece of pieces) {
    const came = piece.replaceAll(/\s/g, '')
    const end = came.indexOf('=')
    const bare = end < 0 ? came : came.slice(0, end)
    if ((padding > 0 && bare !== '') || /[^A-Za-z0-9+/_-]/.test(bare)) refuse()
    if (end >= 0) {
      padding += came.length - end
      if (padding > 2 || /[^=]/.test(came.slice(end))) refuse()
    }
    digits += bare
    const whole = digits.length - (digits.length % 4)
    if (whole > 0) yield Buffer.from(digits.slice(0, whole), 'base64')
    digits = digits.slice(whole)
  }
  if (digits.length === 1 || (padding > 0 && (digits.length + padding) % 4 !== 0)) refuse()
  if (digits !== '') yield Buffer.from(digits, 'base64')
}
