import { isUtf8 } from 'node:buffer'
import { Readable, Transform, type TransformCallback } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { type CastingContext, parse as parseCsv } from 'csv-parse'
import { storabilityProblem, validationProblems } from '#core/api/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { limitJson } from '#core/base/json-limits.ts'
import { itemBytes, MAX_ITEM_BYTES } from './add.ts'
import { DatasetItemInput, type DatasetItemRow } from './model.ts'

/** Files of dataset items: CSV with a header, or one JSON object per line. */

export const ITEM_FORMATS = ['csv', 'jsonl'] as const
export type ItemFormat = (typeof ITEM_FORMATS)[number]

export const MEDIA_TYPES: Record<ItemFormat, string> = { csv: 'text/csv', jsonl: 'application/x-ndjson' }

const COLUMNS = ['input', 'expected_output', 'metadata'] as const
type Column = (typeof COLUMNS)[number]

/** A row with its first line, and its item or problems. A blank row has an empty list of problems. */
export type ItemRow = { line: number } & ({ item: DatasetItemInput } | { problems: Problem[] })

/** Largest size of a row, including quoting and escaping. */
const MAX_ROW_BYTES = 4 * MAX_ITEM_BYTES

/** Most cells of a row; an item has three, and errors report the number up to this limit. */
const MAX_CELLS = 100

const linePath = (line: number, path = ''): string => `lines[${line}]${path === '' ? '' : `.${path}`}`

const invalidRow = (line: number, path: string, message: string, code = 'INVALID_VALUE'): ItemRow => ({
  line,
  problems: [{ code, path: linePath(line, path), message }],
})

const blankRow = (line: number): ItemRow => ({ line, problems: [] })

const tooBig = (line: number): ItemRow =>
  invalidRow(line, '', 'must be at most 4 MiB, including expected_output and metadata', 'TOO_BIG')

/** Problem after which the rest of the file cannot be parsed. */
export class UnreadableFile extends Error {
  readonly problem: Problem
  constructor(line: number, message: string) {
    super(message)
    this.problem = { code: 'MALFORMED', path: linePath(line), message }
  }
}

/** Returns the number of characters of all texts in a value, a lower bound of its bytes. */
function countChars(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 0
  return Object.values(value).reduce<number>((sum, child) => sum + countChars(child), 0)
}

/** Returns a row with its item, or with its problems. */
function toItemRow(line: number, value: unknown): ItemRow {
  // Validating and measuring a value far above the limit takes half a second.
  if (countChars(value) > MAX_ITEM_BYTES) return tooBig(line)
  const problems = validationProblems(DatasetItemInput, value, linePath(line))
  if (problems.length > 0) return { line, problems }
  const item = value as DatasetItemInput
  const problem = storabilityProblem(item)
  if (problem) return invalidRow(line, problem.path, problem.message, problem.code)
  const system = item.input.findIndex(({ role }) => role === 'system')
  if (system >= 0)
    return invalidRow(line, `input[${system}].role`, 'system messages are not allowed', 'SYSTEM_MESSAGE_NOT_ALLOWED')
  return itemBytes(item) > MAX_ITEM_BYTES ? tooBig(line) : { line, item }
}

/**
 * Parses the rows of a file as they arrive.
 * @throws UnreadableFile
 */
export const parseRows = (source: Readable, format: ItemFormat): AsyncGenerator<ItemRow> =>
  format === 'csv' ? csvRows(source) : jsonRows(source)

async function* jsonRows(source: Readable): AsyncGenerator<ItemRow> {
  let line = 0
  for await (const text of readLines(source, MAX_ROW_BYTES)) {
    line++
    if (text.trim() === '') yield blankRow(line)
    else {
      const value = parseJson(text)
      yield value === undefined ? invalidRow(line, '', 'must be a JSON object', 'MALFORMED') : toItemRow(line, value)
    }
  }
}

/** Parses JSON of limited depth and size; undefined if it is invalid. */
function parseJson(text: string): unknown {
  try {
    limitJson(Buffer.from(text))
    return parseExactJson(text)
  } catch {
    return undefined
  }
}

const LINE_FEED = 0x0a

/**
 * Reads the lines of a stream without a byte order mark. Scans each byte once, however small the chunks of a long line
 * are.
 * @throws UnreadableFile for a line that is longer than `maxBytes` or not UTF-8
 */
export async function* readLines(source: Readable, maxBytes: number): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let chunks: Buffer[] = []
  let bytes = 0
  let line = 1
  const takeLine = (): string => {
    const content = Buffer.concat(chunks)
    chunks = []
    bytes = 0
    try {
      return decoder.decode(content)
    } catch {
      throw new UnreadableFile(line, 'is not valid UTF-8')
    }
  }
  for await (const chunk of source as AsyncIterable<Buffer>) {
    let from = 0
    while (from < chunk.length) {
      const end = chunk.indexOf(LINE_FEED, from)
      const part = chunk.subarray(from, end < 0 ? chunk.length : end)
      chunks.push(part)
      bytes += part.length
      if (bytes > maxBytes) throw new UnreadableFile(line, 'is too long')
      if (end < 0) break
      yield takeLine()
      line++
      from = end + 1
    }
  }
  if (bytes > 0) yield takeLine()
}

/** Bytes that the CSV parser handles in one turn of the event loop: about 20 ms for blank rows. */
const PIECE_BYTES = 1024

async function* piecesOf(source: Readable): AsyncGenerator<Buffer> {
  for await (const chunk of source as AsyncIterable<Buffer>)
    for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
      yield chunk.subarray(at, at + PIECE_BYTES)
      await setImmediate()
    }
}

/** Returns a pass-through stream that fails with UnreadableFile at invalid UTF-8. */
function requireUtf8(): Transform {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let line = 1
  const check = (chunk: Buffer, done: TransformCallback, stream: boolean) => {
    try {
      decoder.decode(chunk, { stream })
    } catch {
      // Finds the first invalid complete line, otherwise the unfinished one.
      for (
        let from = 0, end = chunk.indexOf(LINE_FEED);
        end >= 0;
        from = end + 1, end = chunk.indexOf(LINE_FEED, from)
      ) {
        if (from > 0 && !isUtf8(chunk.subarray(from, end))) break
        line++
      }
      return done(new UnreadableFile(line, 'is not valid UTF-8'))
    }
    for (let end = chunk.indexOf(LINE_FEED); end >= 0; end = chunk.indexOf(LINE_FEED, end + 1)) line++
    done(null, chunk.length > 0 ? chunk : undefined)
  }
  return new Transform({
    transform: (chunk: Buffer, _encoding, done) => check(chunk, done, true),
    flush: done => check(Buffer.alloc(0), done, false),
  })
}

/** A parsed cell; `quoted` distinguishes an empty text from an absent value. */
class Cell {
  readonly text: string
  readonly quoted: boolean
  constructor(text: string, quoted: boolean) {
    this.text = text
    this.quoted = quoted
  }

  /** Parser errors serialize their row to JSON, which takes half a second for a large row. */
  toJSON(): null {
    return null
  }
}

async function* csvRows(source: Readable): AsyncGenerator<ItemRow> {
  let rowChars = 0
  const parser = parseCsv({
    bom: true,
    info: true,
    max_record_size: MAX_ROW_BYTES,
    relax_column_count: true,
    // The parser limits the size of a cell, but not the number of cells or their total size.
    cast: (text: string, { quoting, index, lines }: CastingContext) => {
      rowChars = index === 0 ? text.length : rowChars + text.length
      if (index >= MAX_CELLS) throw new UnreadableFile(lines, `has more than ${MAX_CELLS} cells`)
      if (rowChars > MAX_ROW_BYTES) throw new UnreadableFile(lines, 'is too long')
      return new Cell(text, quoting)
    },
  } as never)
  const utf8 = requireUtf8()
  const pieces = Readable.from(piecesOf(source))
  pieces.once('error', error => parser.destroy(error))
  utf8.once('error', error => parser.destroy(error))
  pieces.pipe(utf8).pipe(parser)
  let header: Column[] | null = null
  let line = 1
  let doubleBreaks = 0
  try {
    for await (const { record, info } of parser as AsyncIterable<{ record: Cell[]; info: { lines: number } }>) {
      const firstLine = line
      // The parser counts CRLF within cells as two lines.
      doubleBreaks += record.reduce((sum, { text }) => sum + countCrlf(text), 0)
      line = info.lines + 1 - doubleBreaks
      if (record.length === 1 && record[0].text === '' && !record[0].quoted) yield blankRow(firstLine)
      else if (header) yield csvItem(firstLine, header, record)
      else header = parseHeader(record)
    }
  } catch (error) {
    if (error instanceof UnreadableFile || source.errored) throw error
    const { lines = line, message } = error as { lines?: number; message: string }
    throw new UnreadableFile(lines, message)
  }
}

/** Returns the number of CRLF line breaks. */
function countCrlf(text: string): number {
  let count = 0
  for (let at = text.indexOf('\r\n'); at >= 0; at = text.indexOf('\r\n', at + 2)) count++
  return count
}

/**
 * Returns the columns of a file.
 * @throws UnreadableFile for unknown or duplicate columns, and without the column `input`
 */
function parseHeader(record: readonly Cell[]): Column[] {
  const names = record.map(({ text }) => text.trim())
  const unknown = names.find(name => !(COLUMNS as readonly string[]).includes(name))
  if (unknown !== undefined)
    throw new UnreadableFile(1, `has the unknown column ${unknown.slice(0, 100)}; columns are ${COLUMNS.join(', ')}`)
  if (new Set(names).size < names.length) throw new UnreadableFile(1, 'has a duplicate column')
  if (!names.includes('input')) throw new UnreadableFile(1, 'must contain the column input')
  return names as Column[]
}

function csvItem(line: number, header: readonly Column[], record: readonly Cell[]): ItemRow {
  if (record.length !== header.length)
    return invalidRow(line, '', `has ${record.length} cells, expected ${header.length}`, 'MALFORMED')
  const cells = new Map(header.map((name, index) => [name, record[index]]))
  const textOf = (name: Column): string | null => {
    const cell = cells.get(name)
    return cell === undefined || (cell.text === '' && !cell.quoted) ? null : unescapeFormula(cell.text)
  }
  const input = textOf('input')
  if (input === null) return invalidRow(line, 'input', 'is required', 'REQUIRED')
  const metadata = textOf('metadata')
  const metadataValue = metadata === null ? null : parseJson(metadata)
  if (metadataValue === undefined) return invalidRow(line, 'metadata', 'must be a JSON object', 'MALFORMED')
  return toItemRow(line, {
    input: parseInputCell(input),
    expected_output: textOf('expected_output'),
    metadata: metadataValue,
  })
}

/** Returns the messages of an input cell: a JSON array of messages, or a text as one user message. */
function parseInputCell(text: string): unknown {
  const list = text.trimStart().startsWith('[') ? parseJson(text) : undefined
  return Array.isArray(list) ? list : [{ role: 'user', content: text }]
}

/** Text that spreadsheets interpret as a formula, in some also with full-width characters or after a line break. */
const FORMULA = /^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/

/** Escapes a text that spreadsheets would interpret as a formula; unescapeFormula reverses it. */
const escapeFormula = (text: string): string => (FORMULA.test(text) ? `'${text}` : text)
const unescapeFormula = (text: string): string => (text.startsWith("'") && FORMULA.test(text) ? text.slice(1) : text)

/**
 * Returns a single user message as its text, unless the text would parse as an array; otherwise the messages as JSON.
 */
function formatInputCell(input: DatasetItemRow['input']): string {
  const [{ role, content }] = input
  const plain = input.length === 1 && role === 'user' && typeof content === 'string'
  return plain && content !== '' && !content.trimStart().startsWith('[') ? content : JSON.stringify(input)
}

export const csvHeader = `${COLUMNS.join(',')}\r\n`

/** Formats a CSV cell. Texts are always quoted to distinguish an empty text from an absent value. */
const formatCell = (text: string | null): string =>
  text === null ? '' : `"${escapeFormula(text).replaceAll('"', '""')}"`

/** Formats items as lines of a CSV file. */
export const csvLines = (items: readonly DatasetItemRow[]): string =>
  items.map(item => `${csvRow(item).map(formatCell).join(',')}\r\n`).join('')

/** Returns the cell texts of an item. */
const csvRow = ({ input, expected_output, metadata }: DatasetItemRow): (string | null)[] => [
  formatInputCell(input),
  expected_output,
  metadata === null ? null : JSON.stringify(metadata),
]

/** Returns the exported fields of an item. */
export const jsonLine = ({ input, expected_output, metadata }: DatasetItemRow): object => ({
  input,
  expected_output,
  metadata,
})
