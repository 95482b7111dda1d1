/**
 * A stretch of whole lines of a Markdown text that belongs together, without the blank lines around it: code units,
 * end exclusive. `headings` are those it stands under, outermost first, its own included; `columns` the names in the
 * head of a table.
 */
export type MarkdownBlock = {
  kind: 'heading' | 'paragraph' | 'list' | 'table' | 'fence'
  start: number
  end: number
  headings: Heading[]
  columns?: string
}
export type Heading = { level: number; text: string; start: number }

/**
 * Code units after which a block ends with its line though its text goes on: it is larger than a chunk, so it is cut
 * anyway, and reading one never takes long.
 */
const LONGEST_BLOCK = 512 * 1024

/** The same for lines, which cost more than their length says: 512 Ki of them took 60 to 120 ms, so many 15 to 30. */
const MOST_LINES = 128 * 1024

/** Markers are looked for in so many code units of a line, so that a line of a megabyte costs no more than reading it. */
const HEAD_LENGTH = 256

const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=[^ \t])/
const UNDERLINE = /^ {0,3}(={2,}|-{2,})[ \t]*$/
const FENCE = /^[ \t]*(`{3,}(?=[^`]*$)|~{3,})/
const CLOSING_FENCE = /^[ \t]*(`{3,}|~{3,})[ \t]*$/
const LIST_ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]/
const TABLE_RULE = /^[ \t]*[|:-][ \t|:-]*$/

type Line = { start: number; end: number; next: number; head: string; blank: boolean }

/**
 * The blocks of a text in order, read line by line as they are asked for. It knows of Markdown what matters for
 * cutting: headings with `#` or underlined, fences, lists with what is indented under their items, pipe tables. The
 * rest is paragraphs, so that text without any Markdown is read as its paragraphs.
 * @param borders where pages begin, in code units: no block but a fence goes on over one
 */
export function* markdownBlocks(text: string, borders: ReadonlySet<number>): Generator<MarkdownBlock> {
  let headings: Heading[] = []
  let line = lineAt(text, 0)
  let openFence: string | undefined
  while (line) {
    if (line.blank) {
      line = lineAt(text, nextWords(text, line.next))
      continue
    }
    const { kind, end, next, open, columns }: Found = openFence
      ? { kind: 'fence', ...fenced(text, line, openFence) }
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

/** A block by its end and the line behind it; `open` is the mark of a fence that goes on as another block. */
type Found = Pick<MarkdownBlock, 'kind' | 'end' | 'columns'> & { next: number; open?: string }

function blockAt(text: string, borders: ReadonlySet<number>, first: Line): Found {
  const second = borders.has(first.next) ? null : lineAt(text, first.next)
  const lines = (goesOn: GoesOn) => linesFrom(text, borders, first, goesOn)
  const fence = FENCE.exec(first.head)?.[1]
  if (fence) return { kind: 'fence', ...fenced(text, lineAt(text, first.next) ?? first, fence) }
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

type GoesOn = (line: Line, after: Line | null) => boolean

/** Lines from the first on as long as the next one goes on; a block does not end with blank lines. */
function linesFrom(text: string, borders: ReadonlySet<number>, first: Line, goesOn: GoesOn) {
  let last = first
  let line = lineAt(text, first.next)
  for (let lines = 1; line && lines < MOST_LINES && line.start - first.start < LONGEST_BLOCK; lines++) {
    const after = lineAt(text, line.next)
    if (borders.has(line.start) || !goesOn(line, after)) break
    if (!line.blank) last = line
    line = after
  }
  return { end: last.end, next: last.next }
}

/**
 * A list goes on with items, what is indented, and lines directly below; it ends before a heading, a fence, or text after
 * a blank line.
 */
function continuesList(line: Line, after: Line | null): boolean {
  if (line.blank) return after !== null && !after.blank && (LIST_ITEM.test(after.head) || /^[ \t]{2}/.test(after.head))
  return !FENCE.test(line.head) && !HEADING.test(line.head)
}

const opensBlock = (line: Line) => FENCE.test(line.head) || HEADING.test(line.head) || LIST_ITEM.test(line.head)

/** The rest of a fence from a line in it on; it ends with a line of at least as many of its characters, or with the text. */
function fenced(text: string, first: Line, mark: string): Omit<Found, 'kind'> {
  for (let line = first, lines = 1; ; lines++) {
    const closed = CLOSING_FENCE.exec(line.head)?.[1].startsWith(mark)
    const following = closed ? null : lineAt(text, line.next)
    if (!following) return { end: line.end, next: line.next }
    if (lines === MOST_LINES || line.end - first.start > LONGEST_BLOCK)
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
  if (marks) return { level: marks[1].length, text: withoutClosingMarks(title), start: line.start }
  return { level: lineAt(text, line.next)?.head.includes('=') ? 1 : 2, text: title, start: line.start }
}

/** `## Title ##` is called `Title`. */
function withoutClosingMarks(title: string): string {
  let end = title.length
  while (title[end - 1] === '#') end--
  return title[end - 1] === ' ' ? title.slice(0, end).trimEnd() : title
}

/** The start of the next line that is not blank; blank ones by the million would be slow to read one by one. */
function nextWords(text: string, start: number): number {
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
