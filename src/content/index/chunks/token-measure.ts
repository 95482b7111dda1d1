import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import type { TextMeasure } from './text-measure.ts'

/** Maximum time between yields to the event loop. */
const YIELD_MS = 10

/**
 * Maximum length of a tokenized run. The tokenizer takes quadratic time in the length of a run of letters, and a text
 * without spaces is one run. Longer runs are tokenized in parts, blanks by stretches of the same character; their token
 * counts may be slightly too high.
 */
const MAX_RUN = 64

/**
 * Code units per regular expression match. The expression backtracks over every character of a piece and would exhaust
 * the stack on a piece of several megabytes; a longer piece counts as several.
 */
const WINDOW = 64 * 1024

/** Maximum lookahead of the expression in code units. */
const LOOKAHEAD = 4

/** Token ends retained; lookups go back at most a chunk and its overlap, 200,000 tokens. */
const RETAINED_ENDS = 500_000

type Tokenizer = {
  encoding: Pick<typeof import('gpt-tokenizer/encoding/o200k_base'), 'encode' | 'setMergeCacheSize'>
  split: RegExp
  ranks: readonly (string | readonly number[])[]
}

/** Encodings of models and of OpenAI's embeddings. The tables of o200k_base take 0.1 s and 95 MB, so they are loaded on demand. */
const LOADERS = {
  async o200k_base(): Promise<Tokenizer> {
    const [{ default: encoding }, { O200K_TOKEN_SPLIT_REGEX: split }, { default: ranks }] = await Promise.all([
      import('gpt-tokenizer/encoding/o200k_base'),
      import('gpt-tokenizer/encodingParams/constants'),
      import('gpt-tokenizer/bpeRanks/o200k_base'),
    ])
    return { encoding, split, ranks }
  },
  async cl100k_base(): Promise<Tokenizer> {
    const [{ default: encoding }, { CL100K_TOKEN_SPLIT_REGEX: split }, { default: ranks }] = await Promise.all([
      import('gpt-tokenizer/encoding/cl100k_base'),
      import('gpt-tokenizer/encodingParams/constants'),
      import('gpt-tokenizer/bpeRanks/cl100k_base'),
    ])
    return { encoding, split, ranks }
  },
}

export type Encoding = keyof typeof LOADERS

const tokenizers = new Map<Encoding, Promise<Tokenizer>>()

/** Returns a measure in tokens of an encoding. */
export async function tokenMeasure(text: string, encoding: Encoding = 'o200k_base'): Promise<TextMeasure> {
  const loaded = tokenizers.get(encoding) ?? LOADERS[encoding]()
  tokenizers.set(encoding, loaded)
  const tokenizer = await loaded
  // The cache of merges gains little, and its keys would retain whole texts.
  tokenizer.encoding.setMergeCacheSize(0)
  return new TokenMeasure(text, tokenizer)
}

/**
 * Measures a text in tokens. A token that ends within a character counts as ending before it. Tokenizes on demand and
 * discards old token ends.
 */
class TokenMeasure implements TextMeasure {
  readonly text: string
  readonly #tokenizer: Tokenizer
  readonly #pieces: RegExp
  /** Ends of the tokens from #dropped on, ascending. */
  #ends: number[] = []
  #dropped = 0
  #read = 0
  #window = ''
  #windowStart = 0
  /** End of the current piece, and whether it is a long blank. */
  #pieceEnd = 0
  #blank = false
  /** Last tokenized run and its token ends: long pieces are often repetitive. */
  #last: { run: string; ends: number[] } = { run: '', ends: [] }
  /** Token ends of stretches of one character in long blanks. */
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
      if (performance.now() - since > YIELD_MS) {
        await yieldToEventLoop()
        since = performance.now()
      }
    }
  }

  index(offset: number): number {
    // Includes tokens that end within the character at the offset.
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

  /** Tokenizes the rest of the piece, at most MAX_RUN of it. */
  #readRun() {
    const start = this.#read
    if (start === this.#pieceEnd) this.#nextPiece()
    const end = this.#blank ? this.#stretchEnd(start) : this.#runEnd(start)
    const run = this.text.slice(start, end)
    for (const at of this.#blank ? this.#endsOfStretch(run) : this.#endsOfRun(run)) this.#ends.push(start + at)
    this.#read = end
    if (this.#ends.length > 2 * RETAINED_ENDS) {
      this.#dropped += this.#ends.length - RETAINED_ENDS
      this.#ends = this.#ends.slice(-RETAINED_ENDS)
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
    this.#blank = piece.length > MAX_RUN && !/\S/.test(piece)
  }

  #piece(): string {
    this.#pieces.lastIndex = this.#read - this.#windowStart
    return this.#pieces.exec(this.#window)?.[0] ?? ''
  }

  #runEnd(start: number): number {
    const end = Math.min(start + MAX_RUN, this.#pieceEnd)
    return end < this.#pieceEnd && isHighSurrogate(this.text, end - 1) ? end - 1 : end
  }

  #stretchEnd(start: number): number {
    const furthest = Math.min(start + MAX_RUN, this.#pieceEnd)
    const character = this.text.charCodeAt(start)
    let end = start + 1
    while (end < furthest && this.text.charCodeAt(end) === character) end++
    return end
  }

  #endsOfRun(run: string): number[] {
    if (this.#last.run !== run) this.#last = { run, ends: this.#tokenize(run) }
    return this.#last.ends
  }

  #endsOfStretch(run: string): number[] {
    const ends = this.#stretches.get(run) ?? this.#tokenize(run)
    this.#stretches.set(run, ends)
    return ends
  }

  #tokenize(run: string): number[] {
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

/** Treats special tokens of the model as plain text. */
const PLAIN = { disallowedSpecial: new Set<string>() }

const isHighSurrogate = (text: string, offset: number) => (text.charCodeAt(offset) & 0xfc00) === 0xd800
