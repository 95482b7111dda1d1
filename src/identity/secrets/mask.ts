import { findAll, storableText, truncateBytes } from '../../core/api/storable-text.ts'
import { eventLoopYielder } from '../../core/process/event-loop.ts'

/**
 * Masks secret values in texts of other parties, however these spell them: as they are, or escaped for URLs, forms, JSON
 * and HTML in any mixture and to any depth. Both sides are reduced to plain bytes and compared by the algorithm of Knuth,
 * Morris and Pratt, so the cost is linear in text and value, whatever they hold: about 30 ns a byte.
 */

export const MASK = '***'
/** Shorter values and shorter occurrences stay: masking them would hide what is no secret. In bytes. */
const MASKED_FROM = 8
/** Bytes of a text that are searched and shown, unless said otherwise. */
const SHOWN_BYTES = 16 * 1024

/** The first `maxBytes` of a text with `***` in place of secret values, also of one that the end of these bytes cuts. */
export function maskSecrets(text: string | Buffer, values: readonly string[], maxBytes = SHOWN_BYTES): string {
  const masking = new Masking(text, maxBytes)
  for (const value of values) masking.add(value)
  return masking.text()
}

/** Masks as `mask` does, and yields to the event loop between values: a request may hold a thousand of them. */
export async function maskYielding(text: string | Buffer, values: readonly string[]): Promise<string> {
  const masking = new Masking(text, SHOWN_BYTES)
  const breathe = eventLoopYielder()
  for (const value of values) {
    masking.add(value)
    await breathe()
  }
  return masking.text()
}

class Masking {
  readonly #maxBytes: number
  readonly #source: Buffer
  readonly #isCut: boolean
  readonly #plain: Plain
  /** How many more occurrences begin than end at each byte of the source. */
  readonly #begun: Int32Array

  constructor(text: string | Buffer, maxBytes: number) {
    this.#maxBytes = maxBytes
    this.#isCut = Buffer.byteLength(text) > maxBytes
    this.#source = Buffer.from(storableText(truncateBytes(text, maxBytes)))
    this.#plain = plainOf(this.#source, this.#isCut)
    this.#begun = new Int32Array(this.#source.length + 1)
  }

  /** Masks every occurrence of a value. */
  add(value: string): void {
    const source = Buffer.from(value)
    if (source.length < MASKED_FROM) return
    const { bytes } = this.#plain
    const sought = plainOf(source).bytes
    if (sought.length === 0) return
    const matched = findAll(bytes, sought, end => this.#hide(end - sought.length, end, MASKED_FROM))
    // What the end of the text cuts may be the start of the value.
    if (this.#isCut && matched > 0) this.#hide(bytes.length - matched, bytes.length, 1)
  }

  /** Masks plain bytes, with the backslashes around them, which may be part of the value. */
  #hide(first: number, next: number, leastBytes: number): void {
    const { starts, ends } = this.#plain
    if (ends[next - 1] - starts[first] < leastBytes) return
    this.#begun[first === 0 ? 0 : ends[first - 1]]++
    this.#begun[starts[next]]--
  }

  /** The text with what was added masked. */
  text(): string {
    const { starts, bytes } = this.#plain
    const end = starts[bytes.length]
    const parts: (string | Buffer)[] = []
    let open = 0
    let shown = 0
    for (let at = 0; at < end; at++) {
      const before = open
      open += this.#begun[at]
      if (before === 0 && open > 0) parts.push(this.#source.subarray(shown, at), MASK)
      if (open > 0) shown = at + 1
    }
    // What cannot be stored was replaced by more bytes.
    return truncateBytes([...parts, this.#source.subarray(shown, end)].join(''), this.#maxBytes)
  }
}

/** A text without escapes: its bytes, and where each begins and ends in the source; behind the last, where the text ends. */
type Plain = { bytes: Uint8Array; starts: Uint32Array; ends: Uint32Array }

const [BACKSLASH, PERCENT, PLUS, SPACE, AMPERSAND, SEMICOLON, U] = [...Buffer.from('\\%+ &;u')]
/** What JSON writes as a backslash and a letter. */
const CONTROLS: Partial<Record<number, number>> = { 98: 8, 116: 9, 110: 10, 102: 12, 114: 13 }
/** Longest `&...;` that is read, in bytes. */
const ENTITY_BYTES = 12
const NAMED = new Map(Object.entries({ amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }))
/** An escape without its end. */
const UNENDED = /(?:%[0-9a-f]?|\\(?:u[0-9a-f]{0,3})?|&#?\w*)?$/i

/** The value of a hex digit, or -1. */
const digitOf = (byte: number): number =>
  byte >= 0x30 && byte <= 0x39
    ? byte - 0x30
    : (byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66
      ? (byte | 0x20) - 0x57
      : -1

/** The value of four hex digits that begin at an index, or -1. */
const unitAt = (bytes: Uint8Array, index: number): number =>
  [0, 1, 2, 3].reduce((sum, more) => {
    const digit = digitOf(bytes[index + more])
    return sum < 0 || digit < 0 ? -1 : sum * 16 + digit
  }, 0)

/** UTF-8 of a code point, and of half of a surrogate pair as if it were one. */
const utf8 = (code: number): readonly number[] =>
  code >= 0xd800 && code <= 0xdfff
    ? [0xe0 | (code >> 12), 0x80 | ((code >> 6) & 0x3f), 0x80 | (code & 0x3f)]
    : [...Buffer.from(String.fromCodePoint(code))]

/** What stands for the last `count` bytes. */
type Escape = { count: number; by: readonly number[] }

/** The escape that ends with the last of the first `length` bytes, if any. */
function escapeAt(bytes: Uint8Array, length: number): Escape | null {
  const last = bytes[length - 1]
  if (last === SEMICOLON) return entityAt(bytes, length)
  const low = digitOf(last)
  if (low >= 0 && bytes[length - 3] === PERCENT) {
    const high = digitOf(bytes[length - 2])
    if (high >= 0) return { count: 3, by: [high * 16 + low] }
  }
  if (low >= 0 && bytes[length - 6] === BACKSLASH && bytes[length - 5] === U) {
    const unit = unitAt(bytes, length - 4)
    if (unit >= 0) return unitEscape(bytes, length - 6, unit)
  }
  const control = CONTROLS[last]
  return control !== undefined && bytes[length - 2] === BACKSLASH ? { count: 2, by: [control] } : null
}

/** The escape of a UTF-16 code unit behind the first `length` bytes; the second half of a pair takes the first one back. */
function unitEscape(bytes: Uint8Array, length: number, unit: number): Escape {
  const isSecond = unit >= 0xdc00 && unit <= 0xdfff && bytes[length - 3] === 0xed && bytes[length - 2] >= 0xa0
  if (!isSecond || bytes[length - 2] >= 0xb0) return { count: 6, by: utf8(unit) }
  const first = ((bytes[length - 2] & 0x0f) << 6) | (bytes[length - 1] & 0x3f)
  return { count: 9, by: utf8(0x10000 + (first << 10) + (unit - 0xdc00)) }
}

function entityAt(bytes: Uint8Array, length: number): Escape | null {
  let start = length - 2
  while (start > 0 && bytes[start] !== AMPERSAND && length - start < ENTITY_BYTES) start--
  if (bytes[start] !== AMPERSAND) return null
  const name = Buffer.from(bytes.subarray(start + 1, length - 1)).toString('latin1')
  const digits = /^#(?:x([0-9a-f]+)|(\d+))$/i.exec(name)
  const code = digits ? Number.parseInt(digits[1] ?? digits[2], digits[1] ? 16 : 10) : NAMED.get(name)?.charCodeAt(0)
  return code !== undefined && code <= 0x10ffff ? { count: length - start, by: utf8(code) } : null
}

/**
 * Reduces escapes to what they stand for, innermost first, so that a text that was escaped several times and the text itself
 * come to the same bytes. A plus is a space, and backslashes that escape nothing are left out.
 * @param isCut whether the text may end within an escape, which is left out
 */
function plainOf(source: Buffer, isCut = false): Plain {
  const bytes = new Uint8Array(source.length)
  const starts = new Uint32Array(source.length + 1)
  const ends = new Uint32Array(source.length)
  let length = 0
  const append = (byte: number, offset: number): void => {
    bytes[length] = byte === PLUS ? SPACE : byte
    starts[length++] = offset
  }
  for (let at = 0; at < source.length; at++) {
    append(source[at], at)
    for (let ended = escapeAt(bytes, length); ended; ended = escapeAt(bytes, length)) {
      length -= ended.count
      const offset = starts[length]
      for (const byte of ended.by) append(byte, offset)
    }
  }
  starts[length] = source.length
  if (isCut) {
    const tail = Math.max(0, length - ENTITY_BYTES)
    length = tail + Buffer.from(bytes.subarray(tail, length)).toString('latin1').search(UNENDED)
  }
  const end = starts[length]
  let kept = 0
  for (let at = 0; at < length; at++) {
    if (bytes[at] === BACKSLASH) continue
    bytes[kept] = bytes[at]
    starts[kept] = starts[at]
    ends[kept++] = starts[at + 1]
  }
  starts[kept] = end
  return { bytes: bytes.subarray(0, kept), starts, ends }
}
