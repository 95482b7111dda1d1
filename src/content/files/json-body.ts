import type { Readable } from 'node:stream'
import { getManyValues, isMany, none } from 'stream-chain/core'
import { jsonParser, type parser } from 'stream-json/core/parser.js'
import { stringer } from 'stream-json/core/stringer.js'
import { AppError, raiseInvalid } from '../../core/api/errors.ts'
import { parseJson } from '../../core/http/body.ts'

type Token = parser.Token

const tooLong = (message: string) => new AppError('REQUEST_REJECTED', { status: 413, message })

/**
 * JSON with one long string in it, read as it arrives: the string goes on in pieces, the rest is small, written out again
 * and parsed at the end. Parsed as a whole, a body is held five times over: as bytes, joined, as text, as a value,
 * decoded.
 */
export class JsonBody {
  readonly #source: AsyncIterator<Buffer>
  readonly #options: { name: string; maxBytes: number; maxRestBytes: number }
  readonly #decoder = new TextDecoder()
  // Without packed values no token is longer than a piece of the body.
  readonly #parse = jsonParser({ packValues: false })
  readonly #write = stringer({ useValues: false })
  #bytes = 0
  #ended = false
  #tokens: Token[] = []
  #next = 0
  /** The JSON without the text of the string. */
  #rest = ''
  #depth = 0
  /** The key of the outermost object that was read last; null once its value has begun. */
  #key: string | null = null
  #inKey = false

  /**
   * @param options.name key of the string
   * @param options.maxRestBytes bounds everything but its text
   */
  constructor(source: Readable, options: { name: string; maxBytes: number; maxRestBytes: number }) {
    this.#source = source[Symbol.asyncIterator]()
    this.#options = options
  }

  /** Reads up to the string; false at the end of the body. Raises REQUEST_REJECTED 413. */
  async find(): Promise<boolean> {
    while (await this.#fill()) {
      while (this.#next < this.#tokens.length) {
        const token = this.#tokens[this.#next++]
        this.#keep(token)
        if (this.#begins(token)) return true
      }
    }
    return false
  }

  /** The text of the string that was found, in pieces. */
  async *text(): AsyncGenerator<string> {
    while (await this.#fill()) {
      let text = ''
      while (this.#next < this.#tokens.length) {
        const token = this.#tokens[this.#next]
        if (token.name !== 'stringChunk') {
          if (text !== '') yield text
          return
        }
        text += token.value
        this.#next++
      }
      if (text !== '') yield text
    }
  }

  /** The body with an empty string for the text that was given; undefined when there was none. Raises VALIDATION_FAILED. */
  value(): unknown {
    return this.#bytes === 0 ? undefined : parseJson(this.#rest)
  }

  /** Reads on until there are tokens; false at the end of the body. @throws Error for what is no JSON */
  async #fill(): Promise<boolean> {
    while (this.#next === this.#tokens.length) {
      if (this.#ended) return false
      const { done, value } = await this.#source.next()
      this.#bytes += done ? 0 : value.length
      if (this.#bytes > this.#options.maxBytes) throw tooLong(`The body is larger than ${this.#options.maxBytes} bytes`)
      this.#ended = done === true
      if (done && this.#bytes === 0) return false
      // The types of the parser know only its text, not what ends it.
      const made = this.#parse(done ? (none as never) : this.#decoder.decode(value, { stream: true }))
      this.#tokens = isMany(made) ? (getManyValues(made) as Token[]) : []
      this.#next = 0
    }
    return true
  }

  #keep(token: Token): void {
    const { name, maxRestBytes } = this.#options
    const written = this.#write(token)
    if (typeof written === 'string') this.#rest += written
    if (this.#rest.length > maxRestBytes)
      throw tooLong(`What comes beside ${name} is larger than ${maxRestBytes} bytes`)
  }

  /** Whether a token begins the string: a value of the outermost object. */
  #begins(token: Token): boolean {
    switch (token.name) {
      case 'startObject':
      case 'startArray':
        this.#depth++
        break
      case 'endObject':
      case 'endArray':
        this.#depth--
        break
      case 'startKey':
        this.#inKey = this.#depth === 1
        if (this.#inKey) this.#key = ''
        return false
      case 'stringChunk':
        if (this.#inKey) this.#key += token.value
        return false
      case 'endKey':
        this.#inKey = false
        return false
    }
    const named = this.#key === this.#options.name
    this.#key = null
    return named && token.name === 'startString'
  }
}

/**
 * The bytes of base64 text that comes in pieces: either alphabet, white space ignored, padding optional. Raises
 * VALIDATION_FAILED.
 */
export async function* decodeBase64(pieces: AsyncIterable<string>): AsyncGenerator<Buffer> {
  const refuse = (): never => raiseInvalid({ code: 'INVALID_VALUE', path: 'content', message: 'must be base64' })
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
