import { type Heading, type MarkdownBlock, markdownBlocks } from './blocks.ts'
import type { TextMeasure } from './text-measure.ts'

/** Position of a chunk in code units, end exclusive, with its title and headings. */
type Section = { start: number; end: number; context: string | null }

type Granularity = NonNullable<Intl.SegmenterOptions['granularity']>

const segmenters = new Map<Granularity, Intl.Segmenter>()

/** Segments of a text. The rules are loaded on first use: a process that splits no text starts 9 ms earlier. */
function segmentsOf(text: string, granularity: Granularity): Intl.Segments {
  const segmenter = segmenters.get(granularity) ?? new Intl.Segmenter('und', { granularity })
  segmenters.set(granularity, segmenter)
  return segmenter.segment(text)
}

/** Code units around an offset that are examined for ends of sentences, words and characters. */
const LOOKAHEAD = 64
const LOOKBACK = 256

/** Letters of scripts without spaces between words. */
const UNSPACED =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u

/** Maximum line width of wrapped text. */
const WRAPPED_WIDTH = 120

/**
 * Splits a text by structure: as many whole sections as fit, else as many whole blocks (paragraphs, lists, tables,
 * fences). A block larger than a chunk is split by items, lines or sentences, else between words, else between
 * graphemes. A heading stays with the following text. White space between chunks belongs to none. With an overlap, a
 * chunk starts with the last whole sentences of the previous one, at most half a chunk, if the next piece still fits.
 *
 * Takes linear time: a split point is searched within one chunk size, and the distance of consecutive split points
 * exceeds the text that did not fit before the first.
 * @param borders starts of pages in code units, where the text may be split as after a block
 */
export async function* splitByStructure(
  measure: TextMeasure,
  size: number,
  overlap: number,
  { title, borders }: { title: string | null; borders: ReadonlySet<number> },
): AsyncGenerator<Section> {
  const { text } = measure
  const reach = (from: number) => Math.max(measure.offset(measure.index(from) + size), nextCodePoint(text, from))
  const maxOverlap = Math.min(overlap, Math.floor(size / 2))
  const blocks = new BlockWindow(text, borders)
  let begin = 0
  let start = skipBlank(text, 0)
  while (start < text.length) {
    blocks.discardBefore(begin)
    await measure.measure?.(begin, size)
    if (begin > start || reach(begin) <= start) begin = start
    await measure.measure?.(start, 2 * size)
    let splitPoint = blocks.lastSplitPoint(start, reach(begin))
    if (splitPoint === null && begin < start) {
      splitPoint = blocks.lastSplitPoint(start, reach(start))
      if (splitPoint !== null) begin = start
    }
    splitPoint ??= splitWithinBlock(text, blocks.at(reach(begin)), start, reach(begin), reach)
    const end = start + text.slice(start, splitPoint).trimEnd().length
    // An indentation may be longer than a chunk.
    if (end > start) yield { start: begin, end, context: contextOf(title, blocks.between(begin, end), begin) }
    start = skipBlank(text, splitPoint)
    begin = maxOverlap ? (overlapStart(measure, blocks, begin, end, maxOverlap) ?? start) : start
  }
}

/** Blocks around the current offset, read on demand. */
class BlockWindow {
  #blocks: MarkdownBlock[] = []
  readonly #rest: Iterator<MarkdownBlock>
  #length: number

  constructor(text: string, borders: ReadonlySet<number>) {
    this.#rest = markdownBlocks(text, borders)
    this.#length = text.length
  }

  /** Discards blocks that end before an offset. */
  discardBefore(offset: number) {
    const first = this.#blocks.findIndex(block => block.end > offset)
    this.#blocks.splice(0, first === -1 ? this.#blocks.length : first)
  }

  /**
   * Returns the last split point in (start, limit]: the last end of a section, else the last end of a block; null
   * without one. Returns the end of the text if it is within the limit.
   */
  lastSplitPoint(start: number, limit: number): number | null {
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

  /** Returns the block at an offset, or the next one. */
  at(offset: number): MarkdownBlock | undefined {
    this.#readTo(offset)
    return this.#blocks.find(block => block.end > offset)
  }

  /** Returns the blocks that overlap [start, end). */
  between(start: number, end: number): MarkdownBlock[] {
    return this.#blocks.filter(block => block.start < end && block.end > start)
  }

  /** Reads until a block starts after an offset, so that the successor of the last block before it is available. */
  #readTo(offset: number) {
    while (!this.#blocks.length || (this.#blocks.at(-1) as MarkdownBlock).start <= offset) {
      const next = this.#rest.next()
      if (next.done) return
      this.#blocks.push(next.value)
    }
  }
}

/**
 * Returns a split point if no block ends within the limit: within the block at the limit by its kind, else between
 * words, else between graphemes. A list, table or fence that fits a separate chunk is only split from its heading.
 */
function splitWithinBlock(
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
    (block.kind === 'list' ? lastItemStart(text, from, limit) : null) ??
    (keepsLines || hasEntries(text, from, limit) ? lastLineStart(text, from, limit) : null) ??
    (keepsLines ? lastLineEnd(text, from, limit) : null) ??
    (block.kind !== 'fence' && block.kind !== 'table' ? lastSentenceStart(text, from, limit) : null) ??
    lastWordBoundary(text, from, limit) ??
    lastSegmentStart('grapheme', text, from, limit) ??
    limit
  )
}

/** Returns the start of the last item of the outermost list in the window. */
function lastItemStart(text: string, start: number, end: number): number | null {
  const window = text.slice(start, end)
  let found: { at: number; indent: number } | null = null
  for (const item of window.matchAll(/\n([ \t]*)(?:[-*+]|\d{1,9}[.)])[ \t]/g)) {
    if (!found || item[1].length <= found.indent) found = { at: item.index + 1, indent: item[1].length }
  }
  return found && start + found.at
}

function lastLineEnd(text: string, start: number, end: number): number | null {
  const at = text.slice(start, end).lastIndexOf('\n')
  return at > 0 ? start + at + 1 : null
}

/** Returns the start of the last of the least indented lines in the second half of the window. */
function lastLineStart(text: string, start: number, end: number): number | null {
  const half = start + Math.floor((end - start) / 2)
  let found: { at: number; indent: number } | null = null
  for (const line of text.slice(half, end + LOOKAHEAD).matchAll(/\n([ \t]*)/g)) {
    const at = half + line.index + 1
    if (at <= end && (!found || line[1].length <= found.indent)) found = { at, indent: line[1].length }
  }
  return found?.at ?? null
}

/**
 * Whether the lines of the window are separate entries, as in a log, and not wrapped text. Wrapped text continues with
 * a lower-case letter, or with an upper-case letter if the next word did not fit.
 */
function hasEntries(text: string, start: number, end: number): boolean {
  const lines = text.slice(start, end).split('\n')
  const width = lines.reduce((most, line) => Math.max(most, line.length), 0)
  const continuesPrevious = (line: string, previous: string) =>
    /^[\p{Ll}\p{Lo}\p{M}]/u.test(line) ||
    (/^\p{Lu}/u.test(line) && previous.trimEnd().length + 1 + line.search(/\s|$/) >= width)
  const wrapped = lines.filter((line, index) => index > 0 && continuesPrevious(line, lines[index - 1])).length
  return width > WRAPPED_WIDTH || wrapped < (lines.length - 1) / 2
}

/**
 * Returns the last start of a sentence in (start, end], including an opening bracket. Line breaks do not end sentences,
 * because text may be wrapped.
 */
function lastSentenceStart(text: string, start: number, end: number): number | null {
  const window = unwrap(text.slice(start, end + LOOKAHEAD))
  let at = segmentsOf(window, 'sentence').containing(end - start)?.index ?? 0
  while (at > 0 && /[\p{Ps}\p{Pi}]/u.test(window[at - 1])) at--
  return at > 0 ? start + at : null
}

/** Returns the last boundary of words: after white space, unless the script at the limit has none. */
function lastWordBoundary(text: string, start: number, end: number): number | null {
  const at = lastSegmentStart('word', text, start, end)
  if (at !== null && UNSPACED.test(text.slice(at - 1, at + 1))) return at
  return lastSpaceEnd(text, start, end) ?? at
}

function lastSpaceEnd(text: string, start: number, end: number): number | null {
  for (let at = end; at > start + 1; at--) if (/\s/.test(text[at - 1])) return at
  return null
}

/** Returns the last start of a segment in (start, end], if it is near the end. */
function lastSegmentStart(granularity: Granularity, text: string, start: number, end: number): number | null {
  const from = Math.max(start, end - LOOKBACK)
  const at = segmentsOf(text.slice(from, end + LOOKAHEAD), granularity).containing(end - from)?.index ?? end - from
  return at > 0 ? from + at : null
}

/**
 * Returns the start of the last whole sentences in [begin, end) that fit the overlap; null if the last sentence is
 * longer. Never within a fence or a table.
 */
function overlapStart(
  measure: TextMeasure,
  blocks: BlockWindow,
  begin: number,
  end: number,
  overlap: number,
): number | null {
  const from = Math.max(begin, measure.offset(Math.max(0, measure.index(end) - overlap)))
  const indivisible = blocks.between(from, end).filter(block => block.kind === 'fence' || block.kind === 'table')
  for (const { index } of segmentsOf(unwrap(measure.text.slice(from, end)), 'sentence')) {
    const at = from + index
    if (index > 0 && !indivisible.some(block => block.start < at && at < block.end)) return at
  }
  return null
}

/** Replaces line breaks with spaces, keeping offsets. */
const unwrap = (text: string) => text.replace(/[\r\n\u0085\u2028\u2029]/g, ' ')

/** Returns the title, the headings common to all text of the blocks, and the columns of a table that was split. */
function contextOf(title: string | null, blocks: MarkdownBlock[], begin: number): string | null {
  const texts = blocks.filter(block => block.kind !== 'heading')
  const common = (texts.length ? texts : blocks)
    .map(block => block.headings)
    .reduce<Heading[] | null>((above, headings) => above?.filter((each, at) => headings[at] === each) ?? headings, null)
  const columns = blocks[0].start < begin ? blocks[0].columns : null
  return [title?.trim(), ...(common ?? []).map(heading => heading.text), columns].filter(Boolean).join(' > ') || null
}

/** Returns the next offset that is not blank, or the start of its line if only indentation precedes it. */
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

const nextCodePoint = (text: string, offset: number) => offset + ((text.codePointAt(offset) as number) > 0xffff ? 2 : 1)
