import { type Heading, type MarkdownBlock, markdownBlocks } from './blocks.ts'
import type { TextMeasure } from './text-measure.ts'

/** A chunk by its place in code units, end exclusive, with what it stands under. */
type Section = { start: number; end: number; context: string | null }

const sentences = new Intl.Segmenter('und', { granularity: 'sentence' })
const words = new Intl.Segmenter('und', { granularity: 'word' })
const characters = new Intl.Segmenter('und', { granularity: 'grapheme' })

/** Code units around a place that are looked at to see whether a sentence, a word or a character ends there. */
const LOOKAHEAD = 64
const LOOKBACK = 256

/** Letters of the scripts that put no spaces between words. */
const UNSPACED =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u

/** Lines that are wider are not wrapped text. */
const WRAPPED_WIDTH = 120

/**
 * Cuts a text where its structure allows: as many whole sections as fit, else as many whole blocks (paragraphs, lists,
 * tables, fences), and a block that is larger than a chunk by items, lines or sentences, then between words, then
 * between characters as they are seen. A heading stays with what follows it. Whitespace between chunks belongs to none.
 * With an overlap a chunk begins with the last whole sentences of the one before, at most half a chunk of them, if what
 * has to follow still fits.
 *
 * Every stretch of text is looked at a few times only: a cut is searched within one size, and two cuts in a row are
 * further apart than what did not fit before the first.
 * @param borders where pages begin, in code units: the text may be cut there as after a block
 */
export async function* splitByStructure(
  ruler: TextMeasure,
  size: number,
  overlap: number,
  { title, borders }: { title: string | null; borders: ReadonlySet<number> },
): AsyncGenerator<Section> {
  const { text } = ruler
  const reach = (from: number) => Math.max(ruler.offset(ruler.index(from) + size), nextPoint(text, from))
  const repeated = Math.min(overlap, Math.floor(size / 2))
  const ahead = new Blocks(text, borders)
  let begin = 0
  let start = skipBlank(text, 0)
  while (start < text.length) {
    ahead.drop(begin)
    await ruler.measure?.(begin, size)
    if (begin > start || reach(begin) <= start) begin = start
    await ruler.measure?.(start, 2 * size)
    let cut = ahead.cut(start, reach(begin))
    if (cut === null && begin < start) {
      cut = ahead.cut(start, reach(start))
      if (cut !== null) begin = start
    }
    cut ??= cutWithin(text, ahead.at(reach(begin)), start, reach(begin), reach)
    const end = start + text.slice(start, cut).trimEnd().length
    // A line may be indented by more than a chunk.
    if (end > start) yield { start: begin, end, context: contextOf(title, ahead.between(begin, end), begin) }
    start = skipBlank(text, cut)
    begin = repeated ? (sentenceBefore(ruler, ahead, begin, end, repeated) ?? start) : start
  }
}

/** The blocks around the place that is being cut; read as far as needed. */
class Blocks {
  #blocks: MarkdownBlock[] = []
  readonly #rest: Iterator<MarkdownBlock>
  #length: number

  constructor(text: string, borders: ReadonlySet<number>) {
    this.#rest = markdownBlocks(text, borders)
    this.#length = text.length
  }

  /** Forgets what ends before this offset. */
  drop(offset: number) {
    const first = this.#blocks.findIndex(block => block.end > offset)
    this.#blocks.splice(0, first === -1 ? this.#blocks.length : first)
  }

  /**
   * The last end of a block in (start, limit] after which may be cut, before the last section that begins there if
   * one does; null when there is none. At the end of the text it is that.
   */
  cut(start: number, limit: number): number | null {
    this.#readTo(limit)
    if (limit >= this.#length) return this.#length
    let last: number | null = null
    let lastSection: number | null = null
    for (const [index, block] of this.#blocks.entries()) {
      if (block.end > limit) break
      if (block.end <= start || block.kind === 'heading') continue
      last = block.end
      if (this.#blocks[index + 1]?.kind === 'heading') lastSection = block.end
    }
    return lastSection ?? last
  }

  /** The block that this offset lies in, or the next. */
  at(offset: number): MarkdownBlock | undefined {
    this.#readTo(offset)
    return this.#blocks.find(block => block.end > offset)
  }

  /** Blocks that have a part in [start, end). */
  between(start: number, end: number): MarkdownBlock[] {
    return this.#blocks.filter(block => block.start < end && block.end > start)
  }

  /** Reads until a block begins behind this offset, so that what follows the last one before it is known. */
  #readTo(offset: number) {
    while (!this.#blocks.length || (this.#blocks.at(-1) as MarkdownBlock).start <= offset) {
      const next = this.#rest.next()
      if (next.done) return
      this.#blocks.push(next.value)
    }
  }
}

/**
 * A cut where no end of a block is within reach: in the block at the limit, where its kind may be cut, else between
 * words, else between characters. A list, table or fence that fits a chunk of its own is only cut off its heading.
 */
function cutWithin(
  text: string,
  block: MarkdownBlock | undefined,
  start: number,
  limit: number,
  reach: (from: number) => number,
): number {
  if (!block || block.start >= limit) return limit
  const from = Math.max(start, block.start)
  const keepsLines = block.kind === 'list' || block.kind === 'table' || block.kind === 'fence'
  if (keepsLines && block.start > start && reach(block.start) >= block.end) return block.start
  return (
    (block.kind === 'list' ? beforeItem(text, from, limit) : null) ??
    (keepsLines || hasEntries(text, from, limit) ? beforeLine(text, from, limit) : null) ??
    (keepsLines ? afterLine(text, from, limit) : null) ??
    (block.kind !== 'fence' && block.kind !== 'table' ? lastSentence(text, from, limit) : null) ??
    betweenWords(text, from, limit) ??
    lastBefore(characters, text, from, limit) ??
    limit
  )
}

/** The start of the last item of the outermost list in the window. */
function beforeItem(text: string, start: number, end: number): number | null {
  const window = text.slice(start, end)
  let found: { at: number; indent: number } | null = null
  for (const item of window.matchAll(/\n([ \t]*)(?:[-*+]|\d{1,9}[.)])[ \t]/g)) {
    if (!found || item[1].length <= found.indent) found = { at: item.index + 1, indent: item[1].length }
  }
  return found && start + found.at
}

function afterLine(text: string, start: number, end: number): number | null {
  const at = text.slice(start, end).lastIndexOf('\n')
  return at > 0 ? start + at + 1 : null
}

/** The start of the last of the outermost lines in the second half of the window. */
function beforeLine(text: string, start: number, end: number): number | null {
  const half = start + Math.floor((end - start) / 2)
  let found: { at: number; indent: number } | null = null
  for (const line of text.slice(half, end + LOOKAHEAD).matchAll(/\n([ \t]*)/g)) {
    const at = half + line.index + 1
    if (at <= end && (!found || line[1].length <= found.indent)) found = { at, indent: line[1].length }
  }
  return found?.at ?? null
}

/**
 * Whether the lines of the window are entries of their own, as in a log, and no wrapped text. That goes on with a small
 * letter, or, with a capital one, where the next word did not fit.
 */
function hasEntries(text: string, start: number, end: number): boolean {
  const lines = text.slice(start, end).split('\n')
  const width = lines.reduce((most, line) => Math.max(most, line.length), 0)
  const goesOn = (line: string, before: string) =>
    /^[\p{Ll}\p{Lo}\p{M}]/u.test(line) ||
    (/^\p{Lu}/u.test(line) && before.trimEnd().length + 1 + line.search(/\s|$/) >= width)
  const wrapped = lines.filter((line, index) => index > 0 && goesOn(line, lines[index - 1])).length
  return width > WRAPPED_WIDTH || wrapped < (lines.length - 1) / 2
}

/**
 * The last sentence start in (start, end], and in front of a bracket that opens it. Line breaks are no ends of sentences
 * here: text is wrapped.
 */
function lastSentence(text: string, start: number, end: number): number | null {
  const window = unwrapped(text.slice(start, end + LOOKAHEAD))
  let at = sentences.segment(window).containing(end - start)?.index ?? 0
  while (at > 0 && /[\p{Ps}\p{Pi}]/u.test(window[at - 1])) at--
  return at > 0 ? start + at : null
}

/** The last place between words: behind whitespace, unless the script at the limit has none. */
function betweenWords(text: string, start: number, end: number): number | null {
  const at = lastBefore(words, text, start, end)
  if (at !== null && UNSPACED.test(text.slice(at - 1, at + 1))) return at
  return afterSpace(text, start, end) ?? at
}

function afterSpace(text: string, start: number, end: number): number | null {
  for (let at = end; at > start + 1; at--) if (/\s/.test(text[at - 1])) return at
  return null
}

/** The last place in (start, end] where one of these segments begins, if it is near the end. */
function lastBefore(segmenter: Intl.Segmenter, text: string, start: number, end: number): number | null {
  const from = Math.max(start, end - LOOKBACK)
  const at = segmenter.segment(text.slice(from, end + LOOKAHEAD)).containing(end - from)?.index ?? end - from
  return at > 0 ? from + at : null
}

/**
 * Where the last whole sentences in [begin, end) start that make no more than the overlap; null when the last one is
 * longer. Not within a fence or a table.
 */
function sentenceBefore(ruler: TextMeasure, ahead: Blocks, begin: number, end: number, overlap: number): number | null {
  const from = Math.max(begin, ruler.offset(Math.max(0, ruler.index(end) - overlap)))
  const firm = ahead.between(from, end).filter(block => block.kind === 'fence' || block.kind === 'table')
  for (const { index } of sentences.segment(unwrapped(ruler.text.slice(from, end)))) {
    const at = from + index
    if (index > 0 && !firm.some(block => block.start < at && at < block.end)) return at
  }
  return null
}

/** The same text in one line. */
const unwrapped = (text: string) => text.replace(/[\r\n\u0085\u2028\u2029]/g, ' ')

/** The title, the headings that all text of these blocks stands under, and the columns of a table that was cut before. */
function contextOf(title: string | null, blocks: MarkdownBlock[], begin: number): string | null {
  const texts = blocks.filter(block => block.kind !== 'heading')
  const common = (texts.length ? texts : blocks)
    .map(block => block.headings)
    .reduce<Heading[] | null>((above, headings) => above?.filter((each, at) => headings[at] === each) ?? headings, null)
  const columns = blocks[0].start < begin ? blocks[0].columns : null
  return [title?.trim(), ...(common ?? []).map(heading => heading.text), columns].filter(Boolean).join(' > ') || null
}

/** The next offset that is not blank, or the start of its line when only its indentation is in between. */
function skipBlank(text: string, offset: number): number {
  const blank = /\s*/y
  blank.lastIndex = offset
  const skipped = blank.exec(text)?.[0] ?? ''
  const line = skipped.lastIndexOf('\n')
  const end = offset + skipped.length
  if (end === text.length) return end
  if (line >= 0) return offset + line + 1
  return offset === 0 || text[offset - 1] === '\n' ? offset : end
}

const nextPoint = (text: string, offset: number) => offset + ((text.codePointAt(offset) as number) > 0xffff ? 2 : 1)
