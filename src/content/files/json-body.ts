import type { Readable } from 'node:stream'
import { getManyValues, isMany, none } from 'stream-chain/core'
import { jsonParser, type parser } from 'stream-json/core/parser.js'
import { stringer } from 'stream-json/core/stringer.js'
import { AppError, raiseInvalid } from '#core/base/errors.ts'
import { parseJson } from '#core/base/json-limits.ts'

type Token = parser.Token

const tooLong = (message: string) => new AppError('REQUEST_REJECTED', { status: 413, message })

/**
 * Streaming reader of JSON with one long string. Yields the string in pieces; the small rest is serialized again and
 * parsed at the end. Parsing the whole body would need five copies in memory: bytes, joined bytes, text, value, decoded
 * value.
 */
export class JsonBody {
  readonly #source: AsyncIterator<Buffer>
  readonly #options: { name: string; maxBytes: number; maxRestBytes: number }
  readonly #decoder = new TextDecoder()
  // Without packed values no token is longer than a chunk of the body.
  readonly #parse = jsonParser({ packValues: false })
  readonly #write = stringer({ useValues: false })
  #bytes = 0
  #ended = false
  #tokens: Token[] = []
  #next = 0
  /** The JSON without the content of the string. */
  #rest = ''
  #depth = 0
  /** Last key of the outermost object; null after the start of its value. */
  #key: string | null = null
  #inKey = false

  /**
   * @param options.name key of the string
   * @param options.maxRestBytes limit for the JSON without the content of the string
   */
  constructor(source: Readable, options: { name: string; maxBytes: number; maxRestBytes: number }) {
    this.#source = source[Symbol.asyncIterator]()
    this.#options = options
  }

  /** Reads up to the string; returns false at the end of the body. Raises REQUEST_REJECTED 413. */
  async find(): Promise<boolean> {
    while (await this.#fill()) {
      while (this.#next < this.#tokens.length) {
        const token = this.#tokens[this.#next++]
        this.#append(token)
        if (this.#begins(token)) return true
      }
    }
    return false
  }

  /** Yields the content of the string that `find` reached, in pieces. */
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

  /**
   * Returns the body with an empty string in place of the long one, or undefined without a body. Raises
   * VALIDATION_FAILED.
   */
  value(): unknown {
    return this.#bytes === 0 ? undefined : parseJson(this.#rest)
  }

  /** Reads until there are tokens; returns false at the end of the body. @throws Error for invalid JSON */
  async #fill(): Promise<boolean> {
    while (this.#next === this.#tokens.length) {
      if (this.#ended) return false
      const { done, value } = await this.#source.next()
      this.#bytes += done ? 0 : value.length
      if (this.#bytes > this.#options.maxBytes) throw tooLong(`The body is larger than ${this.#options.maxBytes} bytes`)
      this.#ended = done === true
      if (done && this.#bytes === 0) return false
      // The parser's types lack its end marker.
      const parsed = this.#parse(done ? (none as never) : this.#decoder.decode(value, { stream: true }))
      this.#tokens = isMany(parsed) ? (getManyValues(parsed) as Token[]) : []
      this.#next = 0
    }
    return true
  }

  #append(token: Token): void {
    const { name, maxRestBytes } = this.#options
    const written = this.#write(token)
    if (typeof written === 'string') this.#rest += written
    if (this.#rest.length > maxRestBytes) throw tooLong(`The body without ${name} is larger than ${maxRestBytes} bytes`)
  }

  /** Whether a token starts the string, which is a value of the outermost object. */
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
    const matches = this.#key === this.#options.name
    this.#key = null
    return matches && token.name === 'startString'
  }
}

/**
 * Decodes base64 text that arrives in pieces. Accepts both alphabets, ignores white space; padding is optional. Raises
 * VALIDATION_FAILED.
 */
export async function* decodeBase64(pieces: AsyncIterable<string>): AsyncGenerator<Buffer> {
  const refuse = (): never => raiseInvalid({ code: 'INVALID_VALUE', path: 'content', message: 'must be base64' })
  let digits = ''
  let padding = 0
  for await (const piece of pieces) {
    const text = piece.replaceAll(/\s/g, '')
    const end = text.indexOf('=')
    const bare = end < 0 ? text : text.slice(0, end)
    if ((padding > 0 && bare !== '') || /[^A-Za-z0-9+/_-]/.test(bare)) refuse()
    if (end >= 0) {
      padding += text.length - end
      if (padding > 2 || /[^=]/.test(text.slice(end))) refuse()
    }
    digits += bare
    const whole = digits.length - (digits.length % 4)
    if (whole > 0) yield Buffer.from(digits.slice(0, whole), 'base64')
    digits = digits.slice(whole)
  }
  if (digits.length === 1 || (padding > 0 && (digits.length + padding) % 4 !== 0)) refuse()
  if (digits !== '') yield Buffer.from(digits, 'base64')
}
