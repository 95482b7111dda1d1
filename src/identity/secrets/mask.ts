import { eventLoopYielder } from '#core/base/event-loop.ts'
import { findAll, storableText, truncateBytes } from '#core/base/storable-text.ts'

/**
 * Masks secret values in third-party texts in every spelling: literal, or escaped for URLs, forms, JSON and HTML in any
 * mixture and to any depth, or as hex or base64 (both alphabets, also as a part of a longer text such as `user:secret`).
 * Both sides are reduced to plain bytes. A value of which the text lacks a sequence of four bytes is absent; others are compared by the
 * Knuth-Morris-Pratt algorithm, so the cost is linear in text and value for all contents: about 30 ns per byte.
 */

const MASK = '***'
/**
 * Minimum length, in bytes, of masked values and occurrences: masking shorter ones would hide text that is not secret.
 */
const MIN_MASKED_BYTES = 8
/** Default number of bytes of a text that are searched and returned. */
const DEFAULT_MAX_BYTES = 16 * 1024
/** Bytes that are compared for one text, half a second of work. */
const MAX_COMPARED_BYTES = 16 << 20

/** Bytes that may still be compared. A text that takes more is masked as a whole. */
export type MaskBudget = { bytes: number }

/** A value in the forms in which it is searched, made when first compared. */
export class MaskedValue {
  readonly source: Buffer
  #plain: Uint8Array | undefined
  readonly #encoded = new Map<Encoding, Buffer[]>()

  constructor(value: string) {
    this.source = Buffer.from(value)
  }

  get plain(): Uint8Array {
    this.#plain ??= plainOf(this.source).bytes
    return this.#plain
  }

  /** Returns the possible spellings in an encoding. */
  encoded(encoding: Encoding): Buffer[] {
    const made = this.#encoded.get(encoding) ?? encoding.encode(this.source)
    this.#encoded.set(encoding, made)
    return made
  }
}

/** Returns values for several texts, with the forms that are searched. */
export const valuesForTexts = (values: readonly string[]): readonly MaskedValue[] =>
  values.map(value => new MaskedValue(value))

/**
 * Returns the first `maxBytes` of a text with `***` in place of secret values, including a value that is truncated at
 * the end.
 */
export function maskSecrets(text: string | Buffer, values: readonly string[], maxBytes = DEFAULT_MAX_BYTES): string {
  const masking = new Masking(text, maxBytes, { bytes: MAX_COMPARED_BYTES })
  for (const value of values) masking.add(new MaskedValue(value))
  return masking.text()
}

/**
 * Masks like `maskSecrets` and yields to the event loop between values: a request may have a thousand of them.
 * @param budget of several texts; default of this text
 */
export async function maskYielding(
  text: string | Buffer,
  values: readonly (string | MaskedValue)[],
  budget: MaskBudget = { bytes: MAX_COMPARED_BYTES },
): Promise<string> {
  const masking = new Masking(text, DEFAULT_MAX_BYTES, budget)
  const yieldIfDue = eventLoopYielder()
  for (const value of values) {
    masking.add(typeof value === 'string' ? new MaskedValue(value) : value)
    await yieldIfDue()
  }
  return masking.text()
}

class Masking {
  readonly #maxBytes: number
  readonly #source: Buffer
  readonly #isCut: boolean
  readonly #plain: Plain
  readonly #budget: MaskBudget
  /** Number of occurrences that start at each source byte minus the number that end there. */
  readonly #begun: Int32Array
  /** Views of the text in which values are found, made for the first value. */
  #views: { plain: View; encoded: EncodedView[] } | undefined

  constructor(text: string | Buffer, maxBytes: number, budget: MaskBudget) {
    this.#maxBytes = maxBytes
    this.#isCut = Buffer.byteLength(text) > maxBytes
    this.#source = Buffer.from(storableText(truncateBytes(text, maxBytes)))
    this.#plain = plainOf(this.#source, this.#isCut)
    this.#budget = budget
    this.#begun = new Int32Array(this.#source.length + 1)
  }

  /** Masks every occurrence of a value. */
  add(value: MaskedValue): void {
    const { length } = value.source
    if (length < MIN_MASKED_BYTES || this.#budget.bytes <= 0) return
    this.#budget.bytes -= length
    if (value.plain.length === 0) return
    const { bytes } = this.#plain
    this.#views ??= { plain: viewOf(bytes), encoded: ENCODINGS.map(encoding => encodedView(bytes, encoding)) }
    const { plain, encoded } = this.#views
    // A truncated text may end with the start of the value.
    this.#search(plain, value.plain, 1)
    for (const view of encoded)
      if (view.longestRun >= length)
        for (const spelling of value.encoded(view.encoding)) this.#search(view, spelling, LEAST_CUT_DIGITS)
  }

  /** @param leastCut bytes of the start of the value at the end of a truncated text that are masked */
  #search(view: View, sought: Uint8Array, leastCut: number): void {
    const { bytes } = view
    if (this.#mayContain(view, sought)) {
      this.#budget.bytes -= bytes.length + sought.length
      findAll(bytes, sought, end => this.#hide(end - sought.length, end, MIN_MASKED_BYTES))
    }
    if (!this.#isCut) return
    const tail = bytes.subarray(Math.max(0, bytes.length - sought.length + 1))
    this.#budget.bytes -= tail.length
    const matched = findAll(tail, sought, () => {})
    if (matched >= leastCut) this.#hide(bytes.length - matched, bytes.length, 1)
  }

  /** Whether the text has all sequences of four bytes of a value. */
  #mayContain({ bytes, sequences }: View, sought: Uint8Array): boolean {
    if (sought.length > bytes.length) return false
    let last = 0
    for (let at = 0; at < sought.length; at++) {
      this.#budget.bytes--
      last = nextSequence(last, sought[at])
      if (at >= SEQUENCE - 1 && !hasBit(sequences, last)) return false
    }
    return true
  }

  /** Masks plain bytes together with adjacent backslashes, which may be part of the value. */
  #hide(first: number, next: number, leastBytes: number): void {
    const { starts, ends } = this.#plain
    if (ends[next - 1] - starts[first] < leastBytes) return
    this.#begun[first === 0 ? 0 : ends[first - 1]]++
    this.#begun[starts[next]]--
  }

  /** Returns the masked text. */
  text(): string {
    if (this.#budget.bytes <= 0) return MASK
    const { starts, bytes } = this.#plain
    const end = starts[bytes.length]
    const parts: (string | Buffer)[] = []
    let depth = 0
    let copied = 0
    for (let at = 0; at < end; at++) {
      const before = depth
      depth += this.#begun[at]
      if (before === 0 && depth > 0) parts.push(this.#source.subarray(copied, at), MASK)
      if (depth > 0) copied = at + 1
    }
    // Replacements of unstorable characters may have made the text longer.
    return truncateBytes([...parts, this.#source.subarray(copied, end)].join(''), this.#maxBytes)
  }
}

/** Minimum number of digits at the end of a truncated text that are masked as the start of an encoded value. */
const LEAST_CUT_DIGITS = 4

/** A spelling of bytes as digits. */
type Encoding = {
  /** Returns the digit for comparison; 0 for a byte that is no digit. */
  fold: (byte: number) => number
  /** Returns the possible spellings of a value within a longer encoded text. */
  encode: (value: Buffer) => Buffer[]
}

/** A form of the text in which values are found. `sequences`: bits of the sequences of four bytes that it has, by their hashes. */
type View = { bytes: Uint8Array; sequences: Uint8Array }

/** An unescaped text as digits of an encoding, at the same indexes. */
type EncodedView = View & { longestRun: number; encoding: Encoding }

const SEQUENCE = 4
const SEQUENCE_BITS = 16

const nextSequence = (last: number, byte: number): number => (last << 8) | byte

const bitOf = (sequence: number): number => Math.imul(sequence, 0x9e3779b1) >>> (32 - SEQUENCE_BITS)

const hasBit = (sequences: Uint8Array, sequence: number): boolean => {
  const bit = bitOf(sequence)
  return (sequences[bit >> 3] & (1 << (bit & 7))) !== 0
}

function viewOf(bytes: Uint8Array): View {
  const sequences = new Uint8Array(1 << (SEQUENCE_BITS - 3))
  let last = 0
  for (let at = 0; at < bytes.length; at++) {
    last = nextSequence(last, bytes[at])
    if (at < SEQUENCE - 1) continue
    const bit = bitOf(last)
    sequences[bit >> 3] |= 1 << (bit & 7)
  }
  return { bytes, sequences }
}

const [DASH, UNDERSCORE, SLASH] = [...Buffer.from('-_/')]

const isLetterOrDigit = (byte: number): boolean =>
  (byte >= 0x30 && byte <= 0x39) || ((byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x7a)

const ENCODINGS: readonly Encoding[] = [
  {
    fold: byte => (digitOf(byte) < 0 ? 0 : byte | 0x20),
    encode: value => [Buffer.from(value.toString('hex'))],
  },
  {
    fold: byte => {
      // A plus sign of an unescaped text is a space.
      if (byte === PLUS || byte === SPACE || byte === DASH) return PLUS
      if (byte === SLASH || byte === UNDERSCORE) return SLASH
      return isLetterOrDigit(byte) ? byte : 0
    },
    // A value starts at one of three positions of a group; digits that it shares with its neighbours are left out.
    encode: value =>
      [0, 1, 2].map(offset => {
        const text = Buffer.concat([Buffer.alloc(offset), value]).toString('base64')
        return Buffer.from(text.slice(Math.ceil((offset * 8) / 6), Math.floor(((offset + value.length) * 8) / 6)))
      }),
  },
]

function encodedView(bytes: Uint8Array, encoding: Encoding): EncodedView {
  const digits = bytes.map(encoding.fold)
  let longestRun = 0
  let run = 0
  for (const digit of digits) {
    run = digit === 0 ? 0 : run + 1
    if (run > longestRun) longestRun = run
  }
  return { ...viewOf(digits), longestRun, encoding }
}

/**
 * Text without escapes: its bytes, and their start and end offsets in the source; `starts` has an additional entry for
 * the end of the text.
 */
type Plain = { bytes: Uint8Array; starts: Uint32Array; ends: Uint32Array }

const [BACKSLASH, PERCENT, PLUS, SPACE, AMPERSAND, SEMICOLON, U] = [...Buffer.from('\\%+ &;u')]
/** Characters that JSON escapes with a backslash and a letter. */
const CONTROLS: Partial<Record<number, number>> = { 98: 8, 116: 9, 110: 10, 102: 12, 114: 13 }
/** Maximum length of an `&...;` entity, in bytes. */
const ENTITY_BYTES = 12
const NAMED = new Map(Object.entries({ amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }))
/** Incomplete escape at the end of the text. */
const INCOMPLETE_ESCAPE = /(?:%[0-9a-f]?|\\(?:u[0-9a-f]{0,3})?|&#?\w*)?$/i

/** Returns the value of a hex digit, or -1. */
const digitOf = (byte: number): number =>
  byte >= 0x30 && byte <= 0x39
    ? byte - 0x30
    : (byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66
      ? (byte | 0x20) - 0x57
      : -1

/** Returns the value of the four hex digits at an index, or -1. */
const unitAt = (bytes: Uint8Array, index: number): number =>
  [0, 1, 2, 3].reduce((sum, more) => {
    const digit = digitOf(bytes[index + more])
    return sum < 0 || digit < 0 ? -1 : sum * 16 + digit
  }, 0)

/** Returns the UTF-8 bytes of a code point, also of an unpaired surrogate. */
const utf8 = (code: number): readonly number[] =>
  code >= 0xd800 && code <= 0xdfff
    ? [0xe0 | (code >> 12), 0x80 | ((code >> 6) & 0x3f), 0x80 | (code & 0x3f)]
    : [...Buffer.from(String.fromCodePoint(code))]

/** Replacement for the last `count` bytes. */
type Escape = { count: number; by: readonly number[] }

/** Returns the escape that ends at `length`, if any. */
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

/**
 * Returns the escape of a UTF-16 code unit that follows `length` bytes; a low surrogate also replaces its high
 * surrogate.
 */
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
 * Decodes escapes, innermost first, so that a text and its multiply escaped forms give the same bytes. A plus becomes a
 * space, and backslashes that escape nothing are dropped.
 * @param isCut whether the text may end within an escape, which is then dropped
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
    for (let found = escapeAt(bytes, length); found; found = escapeAt(bytes, length)) {
      length -= found.count
      const offset = starts[length]
      for (const byte of found.by) append(byte, offset)
    }
  }
  starts[length] = source.length
  if (isCut) {
    const tail = Math.max(0, length - ENTITY_BYTES)
    length = tail + Buffer.from(bytes.subarray(tail, length)).toString('latin1').search(INCOMPLETE_ESCAPE)
  }
  const end = starts[length]
  let written = 0
  for (let at = 0; at < length; at++) {
    if (bytes[at] === BACKSLASH) continue
    bytes[written] = bytes[at]
    starts[written] = starts[at]
    ends[written++] = starts[at + 1]
  }
  starts[written] = end
  return { bytes: bytes.subarray(0, written), starts, ends }
}
