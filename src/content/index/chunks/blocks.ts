/**
 * A block of whole lines of a Markdown text, without surrounding blank lines; offsets in code units, end exclusive.
 * `headings`: enclosing headings, outermost first, including a heading block; `columns`: column names of a table.
 */
export type MarkdownBlock = {
  kind: 'heading' | 'paragraph' | 'list' | 'table' | 'fence'
  start: number
  end: number
  headings: Heading[]
  columns?: string
}
export type Heading = { level: number; text: string; start: number }

/** Maximum length of a block in code units, which bounds the time to read one; larger blocks are split anyway. */
const MAX_BLOCK_LENGTH = 512 * 1024

/** Maximum lines of a block, which cost more than their length: 512 Ki lines took 60 to 120 ms, 128 Ki 15 to 30. */
const MAX_BLOCK_LINES = 128 * 1024

/** Code units at the start of a line in which markers are recognized, so that long lines are cheap. */
const HEAD_LENGTH = 256

const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=[^ \t])/
const UNDERLINE = /^ {0,3}(={2,}|-{2,})[ \t]*$/
const FENCE = /^[ \t]*(`{3,}(?=[^`]*$)|~{3,})/
const CLOSING_FENCE = /^[ \t]*(`{3,}|~{3,})[ \t]*$/
const LIST_ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]/
const TABLE_RULE = /^[ \t]*[|:-][ \t|:-]*$/

type Line = { start: number; end: number; next: number; head: string; blank: boolean }

/**
 * Yields the blocks of a text in order, read line by line on demand. Recognizes the Markdown that matters for
 * splitting: headings with `#` or underlines, fences, lists with indented content, pipe tables. All other text is
 * paragraphs.
 * @param borders starts of pages in code units; only fences continue across them
 */
export function* markdownBlocks(text: string, borders: ReadonlySet<number>): Generator<MarkdownBlock> {
  let headings: Heading[] = []
  let line = lineAt(text, 0)
  let openFence: string | undefined
  while (line) {
    if (line.blank) {
      line = lineAt(text, nextNonBlankLine(text, line.next))
      continue
    }
    const { kind, end, next, open, columns }: BlockEnd = openFence
      ? { kind: 'fence', ...readFence(text, line, openFence) }
      : blockAt(text, borders, line)
    openFence = open
    if (kind === 'heading') {
      const heading = headingOf(text, line)
      headings = [...headings.filter(above => above.level < heading.level), heading]
    }
    yield { kind, start: line.start, end, headings, columns }
    line = lineAt(text, next)
  }
}

/** End of a block and start of the next line; `open`: mark of a fence that continues as another block. */
type BlockEnd = Pick<MarkdownBlock, 'kind' | 'end' | 'columns'> & { next: number; open?: string }

function blockAt(text: string, borders: ReadonlySet<number>, first: Line): BlockEnd {
  const second = borders.has(first.next) ? null : lineAt(text, first.next)
  const lines = (continues: LineTest) => readLines(text, borders, first, continues)
  const fence = FENCE.exec(first.head)?.[1]
  if (fence) return { kind: 'fence', ...readFence(text, lineAt(text, first.next) ?? first, fence) }
  if (HEADING.test(first.head)) return { kind: 'heading', end: first.end, next: first.next }
  if (LIST_ITEM.test(first.head)) return { kind: 'list', ...lines(continuesList) }
  if (isTable(text, first, second)) {
    const columns = second && TABLE_RULE.test(second.head) ? columnsOf(first) : undefined
    return { kind: 'table', columns, ...lines(line => !line.blank && hasPipe(text, line)) }
  }
  if (second && UNDERLINE.test(second.head)) return { kind: 'heading', end: second.end, next: second.next }
  return {
    kind: 'paragraph',
    ...lines((line, after) => !line.blank && !opensBlock(line) && !isTable(text, line, after)),
  }
}

type LineTest = (line: Line, after: Line | null) => boolean

/** Reads lines while `continues` accepts the next one; excludes trailing blank lines. */
function readLines(text: string, borders: ReadonlySet<number>, first: Line, continues: LineTest) {
  let last = first
  let line = lineAt(text, first.next)
  for (let lines = 1; line && lines < MAX_BLOCK_LINES && line.start - first.start < MAX_BLOCK_LENGTH; lines++) {
    const after = lineAt(text, line.next)
    if (borders.has(line.start) || !continues(line, after)) break
    if (!line.blank) last = line
    line = after
  }
  return { end: last.end, next: last.next }
}

/**
 * Whether a list continues: with items, indented text and lines directly below. It ends before a heading, a fence, or
 * text after a blank line.
 */
function continuesList(line: Line, after: Line | null): boolean {
  if (line.blank) return after !== null && !after.blank && (LIST_ITEM.test(after.head) || /^[ \t]{2}/.test(after.head))
  return !FENCE.test(line.head) && !HEADING.test(line.head)
}

const opensBlock = (line: Line) => FENCE.test(line.head) || HEADING.test(line.head) || LIST_ITEM.test(line.head)

/** Reads the rest of a fence, up to a line with at least as many of its mark characters, or to the end of the text. */
function readFence(text: string, first: Line, mark: string): Omit<BlockEnd, 'kind'> {
  for (let line = first, lines = 1; ; lines++) {
    const closed = CLOSING_FENCE.exec(line.head)?.[1].startsWith(mark)
    const following = closed ? null : lineAt(text, line.next)
    if (!following) return { end: line.end, next: line.next }
    if (lines === MAX_BLOCK_LINES || line.end - first.start > MAX_BLOCK_LENGTH)
      return { end: line.end, next: line.next, open: mark }
    line = following
  }
}

function isTable(text: string, line: Line, after: Line | null): boolean {
  if (/^[ \t]*\|/.test(line.head)) return true
  if (!after?.head.includes('-') || !TABLE_RULE.test(after.head)) return false
  return hasPipe(text, after) && hasPipe(text, line)
}

const columnsOf = (line: Line) =>
  line.head
    .toWellFormed()
    .split('|')
    .map(name => name.trim())
    .filter(Boolean)
    .join(' | ')

const hasPipe = (text: string, line: Line) => text.slice(line.start, line.end).includes('|')

function headingOf(text: string, line: Line): Heading {
  const marks = HEADING.exec(line.head)
  const title = line.head
    .slice(marks?.[0].length ?? 0)
    .trim()
    .toWellFormed()
  if (marks) return { level: marks[1].length, text: trimClosingMarks(title), start: line.start }
  return { level: lineAt(text, line.next)?.head.includes('=') ? 1 : 2, text: title, start: line.start }
}

/** Removes closing marks, as in `## Title ##`. */
function trimClosingMarks(title: string): string {
  let end = title.length
  while (title[end - 1] === '#') end--
  return title[end - 1] === ' ' ? title.slice(0, end).trimEnd() : title
}

/** Returns the start of the next line that is not blank; reading millions of blank lines one by one would be slow. */
function nextNonBlankLine(text: string, start: number): number {
  const word = /\S/g
  word.lastIndex = start
  const found = word.exec(text)
  return found ? Math.max(start, text.lastIndexOf('\n', found.index) + 1) : text.length
}

function lineAt(text: string, start: number): Line | null {
  if (start >= text.length) return null
  const found = text.indexOf('\n', start)
  const next = found === -1 ? text.length : found + 1
  const end = next - (found === -1 ? 0 : text.charCodeAt(found - 1) === 13 && found > start ? 2 : 1)
  const head = text.slice(start, Math.min(end, start + HEAD_LENGTH))
  return { start, end, next, head, blank: !/\S/.test(head) && !/\S/.test(text.slice(start, end)) }
}
