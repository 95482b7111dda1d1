import { isUtf8 } from 'node:buffer'
import { type Readable, Transform, type TransformCallback } from 'node:stream'
import { type CastingContext, parse as parseCsv } from 'csv-parse'
import type { Problem } from '../../core/api/errors.ts'
import { storabilityProblem, validationProblems } from '../../core/api/validate.ts'
import { limitJson } from '../../core/http/body.ts'
import { itemBytes, MAX_ITEM_BYTES } from './add.ts'
import { DatasetItemInput, type DatasetItemRow } from './model.ts'

/** Items as rows of a file: CSV with a header, or one JSON object a line. */

export const ITEM_FORMATS = ['csv', 'jsonl'] as const
export type ItemFormat = (typeof ITEM_FORMATS)[number]

export const MEDIA_TYPES: Record<ItemFormat, string> = { csv: 'text/csv', jsonl: 'application/x-ndjson' }

const COLUMNS = ['input', 'expected_output', 'metadata'] as const
type Column = (typeof COLUMNS)[number]

/** A row as a file has it: where it begins, and its item or what is wrong with it. A blank row has no problems. */
export type ItemRow = { line: number } & ({ item: DatasetItemInput } | { problems: Problem[] })

/** Bytes of one row: an item, with what quoting and escaping add to it. */
const MAX_ROW_BYTES = 4 * MAX_ITEM_BYTES

/** Cells of one row: an item has three, and what has more is told how many up to here. */
const MAX_CELLS = 100

const at = (line: number, path = ''): string => `lines[${line}]${path === '' ? '' : `.${path}`}`

const wrong = (line: number, path: string, message: string, code = 'INVALID_VALUE'): ItemRow => ({
  line,
  problems: [{ code, path: at(line, path), message }],
})

const blank = (line: number): ItemRow => ({ line, problems: [] })

const tooBig = (line: number): ItemRow => wrong(line, '', 'must be at most 4 MiB with all it says', 'TOO_BIG')

/** A row that breaks off the file: what follows it cannot be told apart. */
export class UnreadableFile extends Error {
  readonly problem: Problem
  constructor(line: number, message: string) {
    super(message)
    this.problem = { code: 'MALFORMED', path: at(line), message }
  }
}

/** Characters of the texts in a value: at least so many bytes does it take. */
function charsIn(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 0
  return Object.values(value).reduce<number>((sum, each) => sum + charsIn(each), 0)
}

/** What a row says as an item, or what is wrong with it. */
function itemOf(line: number, value: unknown): ItemRow {
  // Checking and measuring what is far too large takes half a second.
  if (charsIn(value) > MAX_ITEM_BYTES) return tooBig(line)
  const problems = validationProblems(DatasetItemInput, value, at(line))
  if (problems.length > 0) return { line, problems }
  const item = value as DatasetItemInput
  const bad = storabilityProblem(item)
  if (bad) return wrong(line, bad.path, bad.message, bad.code)
  const system = item.input.findIndex(({ role }) => role === 'system')
  if (system >= 0)
    return wrong(line, `input[${system}].role`, 'system messages are not allowed', 'SYSTEM_MESSAGE_NOT_ALLOWED')
  return itemBytes(item) > MAX_ITEM_BYTES ? tooBig(line) : { line, item }
}

/** The rows of a file, as they arrive. Throws Unreadable. */
export const parseRows = (source: Readable, format: ItemFormat): AsyncGenerator<ItemRow> =>
  format === 'csv' ? csvRows(source) : jsonRows(source)

async function* jsonRows(source: Readable): AsyncGenerator<ItemRow> {
  let line = 0
  for await (const text of linesOf(source, MAX_ROW_BYTES)) {
    line++
    if (text.trim() === '') yield blank(line)
    else {
      const read = parsed(text)
      yield read === undefined ? wrong(line, '', 'must be one JSON object', 'MALFORMED') : itemOf(line, read)
    }
  }
}

/** A JSON value of bounded depth and size; undefined for what is none. */
function parsed(text: string): unknown {
  try {
    limitJson(Buffer.from(text))
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const LINE_FEED = 0x0a

/**
 * Lines of a stream, each of a bounded length; a byte order mark is left out. Each byte is looked at once, however small the
 * pieces are in which a long line comes. Throws Unreadable for a line that is too long or not UTF-8.
 */
export async function* linesOf(source: Readable, mostBytes: number): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let pieces: Buffer[] = []
  let bytes = 0
  let line = 1
  const ended = (): string => {
    const whole = Buffer.concat(pieces)
    pieces = []
    bytes = 0
    try {
      return decoder.decode(whole)
    } catch {
      throw new UnreadableFile(line, 'is not UTF-8')
    }
  }
  for await (const chunk of source as AsyncIterable<Buffer>) {
    let from = 0
    while (from < chunk.length) {
      const end = chunk.indexOf(LINE_FEED, from)
      const piece = chunk.subarray(from, end < 0 ? chunk.length : end)
      pieces.push(piece)
      bytes += piece.length
      if (bytes > mostBytes) throw new UnreadableFile(line, 'is longer than a row may be')
      if (end < 0) break
      yield ended()
      line++
      from = end + 1
    }
  }
  if (bytes > 0) yield ended()
}

/** Passes a stream on as long as it is UTF-8. Fails with Unreadable. */
function utf8Only(): Transform {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let line = 1
  const checked = (chunk: Buffer, done: TransformCallback, stream: boolean) => {
    try {
      decoder.decode(chunk, { stream })
    } catch {
      // A line that was read whole and is none, else the one that has not ended yet.
      for (
        let from = 0, end = chunk.indexOf(LINE_FEED);
        end >= 0;
        from = end + 1, end = chunk.indexOf(LINE_FEED, from)
      ) {
        if (from > 0 && !isUtf8(chunk.subarray(from, end))) break
        line++
      }
      return done(new UnreadableFile(line, 'is not UTF-8'))
    }
    for (let end = chunk.indexOf(LINE_FEED); end >= 0; end = chunk.indexOf(LINE_FEED, end + 1)) line++
    done(null, chunk.length > 0 ? chunk : undefined)
  }
  return new Transform({
    transform: (chunk: Buffer, _encoding, done) => checked(chunk, done, true),
    flush: done => checked(Buffer.alloc(0), done, false),
  })
}

/** A cell as it was read: whether it was quoted tells an empty text from nothing. */
class Cell {
  readonly text: string
  readonly quoted: boolean
  constructor(text: string, quoted: boolean) {
    this.text = text
    this.quoted = quoted
  }

  /** Nothing: errors of the parser copy the row that they are about as JSON, which takes half a second for a large one. */
  toJSON(): null {
    return null
  }
}

async function* csvRows(source: Readable): AsyncGenerator<ItemRow> {
  let held = 0
  const parser = parseCsv({
    bom: true,
    info: true,
    max_record_size: MAX_ROW_BYTES,
    relax_column_count: true,
    // The parser bounds a cell, and neither how many there are nor what they take together.
    cast: (text: string, { quoting, index, lines }: CastingContext) => {
      held = index === 0 ? text.length : held + text.length
      if (index >= MAX_CELLS) throw new UnreadableFile(lines, `has more than ${MAX_CELLS} cells`)
      if (held > MAX_ROW_BYTES) throw new UnreadableFile(lines, 'is longer than a row may be')
      return new Cell(text, quoting)
    },
  } as never)
  const checked = utf8Only()
  source.once('error', error => parser.destroy(error))
  checked.once('error', error => parser.destroy(error))
  source.pipe(checked).pipe(parser)
  let header: Column[] | null = null
  let line = 1
  let twice = 0
  try {
    for await (const { record, info } of parser as AsyncIterable<{ record: Cell[]; info: { lines: number } }>) {
      const begins = line
      // Line breaks of two characters within cells are counted twice.
      twice += record.reduce((sum, { text }) => sum + longBreaks(text), 0)
      line = info.lines + 1 - twice
      if (record.length === 1 && record[0].text === '' && !record[0].quoted) yield blank(begins)
      else if (header) yield csvItem(begins, header, record)
      else header = headerOf(record)
    }
  } catch (error) {
    if (error instanceof UnreadableFile || source.errored) throw error
    const { lines = line, message } = error as { lines?: number; message: string }
    throw new UnreadableFile(lines, message)
  }
}

/** Line breaks of two characters. */
function longBreaks(text: string): number {
  let count = 0
  for (let at = text.indexOf('\r\n'); at >= 0; at = text.indexOf('\r\n', at + 2)) count++
  return count
}

/** The columns of a file. Throws Unreadable for columns that items have none of, and without the input. */
function headerOf(record: readonly Cell[]): Column[] {
  const names = record.map(({ text }) => text.trim())
  const unknown = names.find(name => !(COLUMNS as readonly string[]).includes(name))
  if (unknown !== undefined)
    throw new UnreadableFile(
      1,
      `the first line must name columns among ${COLUMNS.join(', ')}, and names ${unknown.slice(0, 100)}`,
    )
  if (new Set(names).size < names.length) throw new UnreadableFile(1, 'the first line names a column twice')
  if (!names.includes('input')) throw new UnreadableFile(1, 'the first line must name the column input')
  return names as Column[]
}

function csvItem(line: number, header: readonly Column[], record: readonly Cell[]): ItemRow {
  if (record.length !== header.length)
    return wrong(line, '', `has ${record.length} cells, and the first line names ${header.length} columns`, 'MALFORMED')
  const cells = new Map(header.map((name, index) => [name, record[index]]))
  const said = (name: Column): string | null => {
    const cell = cells.get(name)
    return cell === undefined || (cell.text === '' && !cell.quoted) ? null : unescapeFormula(cell.text)
  }
  const input = said('input')
  if (input === null) return wrong(line, 'input', 'is required', 'REQUIRED')
  const metadata = said('metadata')
  const bag = metadata === null ? null : parsed(metadata)
  if (bag === undefined) return wrong(line, 'metadata', 'must be a JSON object', 'MALFORMED')
  return itemOf(line, { input: messagesIn(input), expected_output: said('expected_output'), metadata: bag })
}

/** The messages of a cell: a JSON list of them, or a text that the user says. */
function messagesIn(text: string): unknown {
  const list = text.trimStart().startsWith('[') ? parsed(text) : undefined
  return Array.isArray(list) ? list : [{ role: 'user', content: text }]
}

/** What programs for tables take for a formula, some of them also in full width or behind a line break. */
const FORMULA = /^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/

/** A text as a cell that no program takes for a formula, and back. */
export const escapeFormula = (text: string): string => (FORMULA.test(text) ? `'${text}` : text)
export const unescapeFormula = (text: string): string =>
  text.startsWith("'") && FORMULA.test(text) ? text.slice(1) : text

/** A message of the user alone is shown as its text, unless that reads like a list of messages. */
function inputCell(input: DatasetItemRow['input']): string {
  const [{ role, content }] = input
  const plain = input.length === 1 && role === 'user' && typeof content === 'string'
  return plain && content !== '' && !content.trimStart().startsWith('[') ? content : JSON.stringify(input)
}

/** The first line of a CSV file. */
export const csvHeader = `${COLUMNS.join(',')}\r\n`

/** A cell of a CSV file: all texts are quoted, so that an empty one is told from nothing. */
const cell = (text: string | null): string => (text === null ? '' : `"${escapeFormula(text).replaceAll('"', '""')}"`)

/** Items as lines of a CSV file. */
export const csvLines = (items: readonly DatasetItemRow[]): string =>
  items.map(item => `${csvRow(item).map(cell).join(',')}\r\n`).join('')

/** An item as a row of a CSV file. */
const csvRow = ({ input, expected_output, metadata }: DatasetItemRow): (string | null)[] => [
  inputCell(input),
  expected_output,
  metadata === null ? null : JSON.stringify(metadata),
]

/** An item as a line of a JSONL file. */
export const jsonLine = ({ input, expected_output, metadata }: DatasetItemRow): object => ({
  input,
  expected_output,
  metadata,
})
