import { type Block, blocksOf, type Heading } from './blocks.ts'
import type { Ruler } from './ruler.ts'

/** A chunk by its place in code units, end exclusive, with what it stands under. */
type Section = { start: number; end: number; context: string | null }

const sentences = new Intl.Segmenter('und', { granularity: 'sentence' })

/** Code units behind a place that the rules of sentences look at to see whether one ends there. */
const LOOKAHEAD = 64

/**
 * Cuts a text where its structure allows: as many whole sections as fit, else as many whole blocks (paragraphs, lists,
 * tables, fences), and a block that is larger than a chunk by items, lines or sentences, then between words, then
 * anywhere. A heading stays with what follows it. Whitespace between chunks belongs to none. With an overlap a chunk
 * begins with the last whole sentences of the one before, at most half a chunk of them, if what has to follow still fits.
 *
 * Every stretch of text is looked at a few times only: a cut is searched within one size, and two cuts in a row are
 * further apart than what did not fit before the first.
 * @param borders where pages begin, in code units: the text may be cut there as after a block
 */
export async function* sections(
  ruler: Ruler,
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
    if (end > start) yield { start: begin, end, context: contextOf(title, ahead.between(begin, end)) }
    start = skipBlank(text, cut)
    begin = repeated ? (sentenceBefore(ruler, ahead, begin, end, repeated) ?? start) : start
  }
}

/** The blocks around the place that is being cut; read as far as needed. */
class Blocks {
  #blocks: Block[] = []
  readonly #rest: Iterator<Block>
  #length: number

  constructor(text: string, borders: ReadonlySet<number>) {
    this.#rest = blocksOf(text, borders)
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
  at(offset: number): Block | undefined {
    this.#readTo(offset)
    return this.#blocks.find(block => block.end > offset)
  }

  /** Blocks that have a part in [start, end). */
  between(start: number, end: number): Block[] {
    return this.#blocks.filter(block => block.start < end && block.end > start)
  }

  /** Reads until a block begins behind this offset, so that what follows the last one before it is known. */
  #readTo(offset: number) {
    while (!this.#blocks.length || (this.#blocks.at(-1) as Block).start <= offset) {
      const next = this.#rest.next()
      if (next.done) return
      this.#blocks.push(next.value)
    }
  }
}

/**
 * A cut where no end of a block is within reach: in the block at the limit, where its kind may be cut, else between
 * words, else at the limit. A list, table or fence that fits a chunk of its own is only cut off its heading.
 */
function cutWithin(
  text: string,
  block: Block | undefined,
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
    (keepsLines ? afterLine(text, from, limit) : null) ??
    (block.kind !== 'fence' && block.kind !== 'table' ? lastSentence(text, from, limit) : null) ??
    afterWord(text, from, limit) ??
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

/** The last sentence start in (start, end]. Line breaks are no ends of sentences here: text is wrapped. */
function lastSentence(text: string, start: number, end: number): number | null {
  const window = unwrapped(text.slice(start, end + LOOKAHEAD))
  const at = sentences.segment(window).containing(end - start)?.index ?? 0
  return at > 0 ? start + at : null
}

function afterWord(text: string, start: number, end: number): number | null {
  for (let at = end; at > start + 1; at--) if (/\s/.test(text[at - 1])) return at
  return null
}

/**
 * Where the last whole sentences in [begin, end) start that make no more than the overlap; null when the last one is
 * longer. Not within a fence or a table.
 */
function sentenceBefore(ruler: Ruler, ahead: Blocks, begin: number, end: number, overlap: number): number | null {
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

/** The title and the headings that all text of these blocks stands under. */
function contextOf(title: string | null, blocks: Block[]): string | null {
  const texts = blocks.filter(block => block.kind !== 'heading')
  const common = (texts.length ? texts : blocks)
    .map(block => block.headings)
    .reduce<Heading[] | null>((above, headings) => above?.filter((each, at) => headings[at] === each) ?? headings, null)
  return [title?.trim(), ...(common ?? []).map(heading => heading.text)].filter(Boolean).join(' > ') || null
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
