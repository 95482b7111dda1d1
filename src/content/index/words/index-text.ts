import { setImmediate as nextTurn } from 'node:timers/promises'
import { compoundAt, foldWord, normalizeText, scriptConfig, type Word, wordsOf } from './fold.ts'

/**
 * Words of a text as `words_tsv` reads them: lines of words, where the word at a position of one line and of another are
 * alternatives. The first character of a line is the weight of its words: D as written, C in another form. A
 * configuration for the script, or `-`, and a space follow.
 *
 * A run of a script without spaces is indexed by its overlapping pairs of letters, and its last letter alone: a single
 * letter is found by the prefix.
 */

/** Marks a position without a word in a line. */
const NO_WORD = 'zqxj'
/** Last position that a tsvector distinguishes. */
const MAX_POSITION = 16_383
/** Characters of a text whose words are indexed, as a tsvector holds 1 MiB of them. */
const MAX_CHARACTERS = 262_144
/** Characters at a time; normalization may make eighteen of one. */
const SLICE = 4096
const SLICE_MS = 10

class WordLines {
  readonly #lines = new Map<string, string[]>()
  #position = 0
  #size = 0

  /** Whether the tsvector is certainly full. */
  get full(): boolean {
    return this.#size > 4 * MAX_CHARACTERS
  }

  add(text: string): void {
    const words = wordsOf(normalizeText(text))
    let joinedUntil = 0
    for (const [index, word] of words.entries()) {
      if (word.letters) {
        this.#addRun(word.letters)
        continue
      }
      const compound = index >= joinedUntil ? compoundAt(words, index) : null
      if (compound) joinedUntil = index + compound.length
      this.#addWord(word, compound?.text)
    }
  }

  #addRun(letters: readonly string[]): void {
    for (const [at, letter] of letters.entries()) this.#put('D-', this.#position++, letter + (letters[at + 1] ?? ''))
  }

  #addWord({ text, parts }: Word, compound: string | undefined): void {
    const config = scriptConfig(text) ?? '-'
    this.#put(`D${config}`, this.#position, text)
    const forms = compound === undefined ? parts : [...parts, compound]
    const others = new Set([foldWord(text), ...forms, ...forms.map(foldWord)].filter(form => form !== null))
    others.delete(text)
    let line = 0
    for (const form of others) this.#put(`C${config} ${line++}`, this.#position, form)
    this.#position += 1
  }

  #put(key: string, position: number, word: string): void {
    let line = this.#lines.get(key)
    if (!line) this.#lines.set(key, (line = []))
    while (line.length < Math.min(position, MAX_POSITION)) line.push(NO_WORD)
    line.push(word)
    this.#size += word.length
  }

  toString(): string {
    return [...this.#lines].map(([key, words]) => `${key.split(' ', 1)[0]} ${words.join(' ')}`).join('\n')
  }
}

/** Returns the words of a short text. */
export function indexText(text: string): string {
  const lines = new WordLines()
  for (const slice of slicesOf(text)) if (!lines.full) lines.add(slice)
  return lines.toString()
}

/** Returns the words of texts, in the same order. Yields to the event loop every 10 ms. */
export async function indexTexts(texts: readonly string[]): Promise<string[]> {
  const indexed: string[] = []
  let since = performance.now()
  for (const text of texts) {
    const lines = new WordLines()
    for (const slice of slicesOf(text)) {
      if (lines.full) break
      lines.add(slice)
      if (performance.now() - since < SLICE_MS) continue
      await nextTurn()
      since = performance.now()
    }
    indexed.push(lines.toString())
  }
  return indexed
}

function* slicesOf(text: string): Generator<string> {
  for (let start = 0; start < Math.min(text.length, MAX_CHARACTERS); ) {
    const end = endOfSlice(text, start)
    yield text.slice(start, end)
    start = end
  }
}

/** Characters between words: spaces, and the punctuation of scripts without spaces, whose pairs of letters a slice would part. */
const BETWEEN_WORDS = /[\s\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]/

/** Ends a slice between words, if it has such a place near its end, and never within a surrogate pair. */
function endOfSlice(text: string, start: number): number {
  const end = start + SLICE
  if (end >= text.length) return text.length
  for (let at = end; at > end - 1000; at--) if (BETWEEN_WORDS.test(text[at])) return at + 1
  const code = text.charCodeAt(end)
  return code >= 0xdc00 && code <= 0xdfff ? end - 1 : end
}
