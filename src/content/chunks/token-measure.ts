import { setImmediate as nextTurn } from 'node:timers/promises'
import type { TextMeasure } from './text-measure.ts'

/** How long measuring may keep the process from its other work, in milliseconds. */
const TURN_MS = 10

/**
 * The tokenizer merges a run of letters in time that grows with the square of its length, and a text without spaces is
 * one run. Longer runs are given to it in parts, blanks in stretches of one character, of which there are few; only
 * they can come out a little longer than they are.
 */
const LONGEST_RUN = 64

/**
 * Code units in which pieces are looked for at once. The expression keeps a way back for every character of a piece, so
 * in one of some megabytes it would run out of stack; a longer piece counts as several.
 */
const WINDOW = 64 * 1024

/** Code units that the expression looks ahead at most, to see where a piece ends. */
const LOOKAHEAD = 4

/** Token ends that are kept; nobody asks for one further back than a chunk and its overlap, 200,000 tokens. */
const KEPT = 500_000

/**
 * Loaded at the first text that is measured in tokens: the tables of o200k_base take 0.1 s and 95 MB. Without its cache
 * of merges, which wins little here and whose keys would keep whole texts in memory.
 */
const loadTokenizer = async () => {
  const [{ default: encoding }, { O200K_TOKEN_SPLIT_REGEX }, { default: ranks }] = await Promise.all([
    import('gpt-tokenizer/encoding/o200k_base'),
    import('gpt-tokenizer/encodingParams/constants'),
    import('gpt-tokenizer/bpeRanks/o200k_base'),
  ])
  encoding.setMergeCacheSize(0)
  return { encoding, split: O200K_TOKEN_SPLIT_REGEX, ranks }
}
type Tokenizer = Awaited<ReturnType<typeof loadTokenizer>>
let tokenizer: Promise<Tokenizer> | undefined

/** A ruler that counts in tokens of o200k_base. */
export async function tokenMeasure(text: string): Promise<TokenRuler> {
  tokenizer ??= loadTokenizer()
  return new TokenRuler(text, await tokenizer)
}

/**
 * Counts in tokens of the text as a whole. A token may end within a character; its place is then in front of that
 * character. Tokens are made as far as somebody asks and let go once they lie far behind.
 */
class TokenRuler implements TextMeasure {
  readonly text: string
  readonly #tokenizer: Tokenizer
  readonly #pieces: RegExp
  /** Where the tokens from #dropped on end, rising. */
  #ends: number[] = []
  #dropped = 0
  #read = 0
  #window = ''
  #windowStart = 0
  /** Where the piece ends that is being read, and whether it is a long blank. */
  #pieceEnd = 0
  #blank = false
  /** What was given to the tokenizer last, and where its tokens end in it: a long piece often repeats itself. */
  #last: { run: string; ends: number[] } = { run: '', ends: [] }
  /** The same of the stretches of one character that long blanks are read by. */
  readonly #stretches = new Map<string, number[]>()

  constructor(text: string, tokenizer: Tokenizer) {
    this.text = text
    this.#tokenizer = tokenizer
    this.#pieces = new RegExp(tokenizer.split)
  }

  async measure(offset: number, units: number): Promise<void> {
    let since = performance.now()
    let until = Number.POSITIVE_INFINITY
    while (this.#read < this.text.length) {
      if (this.#read > offset && until === Number.POSITIVE_INFINITY) until = this.index(offset) + units
      if (this.#dropped + this.#ends.length >= until) return
      this.#readRun()
      if (performance.now() - since > TURN_MS) {
        await nextTurn()
        since = performance.now()
      }
    }
  }

  index(offset: number): number {
    // The tokens that end within the character at the offset count as those before it.
    while (this.#read <= offset && this.#read < this.text.length) this.#readRun()
    let low = 0
    let high = this.#ends.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#ends[middle] <= offset) low = middle + 1
      else high = middle
    }
    return this.#dropped + low
  }

  offset(index: number): number {
    while (this.#dropped + this.#ends.length < index && this.#read < this.text.length) this.#readRun()
    if (this.#dropped + this.#ends.length < index) return this.text.length
    return index === 0 ? 0 : this.#ends[index - 1 - this.#dropped]
  }

  /** Reads on to the end of the piece, or as much of it as the tokenizer is given at once. */
  #readRun() {
    const start = this.#read
    if (start === this.#pieceEnd) this.#nextPiece()
    const end = this.#blank ? this.#stretchEnd(start) : this.#runEnd(start)
    const run = this.text.slice(start, end)
    for (const at of this.#blank ? this.#stretch(run) : this.#run(run)) this.#ends.push(start + at)
    this.#read = end
    if (this.#ends.length > 2 * KEPT) {
      this.#dropped += this.#ends.length - KEPT
      this.#ends = this.#ends.slice(-KEPT)
    }
  }

  #nextPiece() {
    let piece = this.#piece()
    const windowEnd = this.#windowStart + this.#window.length
    if (this.#read + piece.length > windowEnd - LOOKAHEAD && windowEnd < this.text.length) {
      const end = this.#read + WINDOW
      this.#windowStart = this.#read
      this.#window = this.text.slice(this.#read, isHighSurrogate(this.text, end - 1) ? end - 1 : end)
      piece = this.#piece()
    }
    this.#pieceEnd = this.#read + piece.length
    this.#blank = piece.length > LONGEST_RUN && !/\S/.test(piece)
  }

  #piece(): string {
    this.#pieces.lastIndex = this.#read - this.#windowStart
    return this.#pieces.exec(this.#window)?.[0] ?? ''
  }

  #runEnd(start: number): number {
    const end = Math.min(start + LONGEST_RUN, this.#pieceEnd)
    return end < this.#pieceEnd && isHighSurrogate(this.text, end - 1) ? end - 1 : end
  }

  #stretchEnd(start: number): number {
    const furthest = Math.min(start + LONGEST_RUN, this.#pieceEnd)
    const character = this.text.charCodeAt(start)
    let end = start + 1
    while (end < furthest && this.text.charCodeAt(end) === character) end++
    return end
  }

  #run(run: string): number[] {
    if (this.#last.run !== run) this.#last = { run, ends: this.#endsIn(run) }
    return this.#last.ends
  }

  #stretch(run: string): number[] {
    const ends = this.#stretches.get(run) ?? this.#endsIn(run)
    this.#stretches.set(run, ends)
    return ends
  }

  #endsIn(run: string): number[] {
    const { encoding, ranks } = this.#tokenizer
    let bytes = 0
    let at = 0
    let seen = 0
    return encoding.encode(run, PLAIN).map(token => {
      const value = ranks[token]
      bytes += typeof value === 'string' ? Buffer.byteLength(value) : value.length
      for (let next = seen; at < run.length; ) {
        const code = run.codePointAt(at) as number
        next += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4
        if (next > bytes) break
        at += code < 0x10000 ? 1 : 2
        seen = next
      }
      return at
    })
  }
}

/** Text is text: nothing in it is one of the model's marks. */
const PLAIN = { disallowedSpecial: new Set<string>() }

const isHighSurrogate = (text: string, offset: number) => (text.charCodeAt(offset) & 0xfc00) === 0xd800
