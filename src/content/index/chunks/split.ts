import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import { AppError } from '#core/base/errors.ts'
import type { ChunkDraft, ChunkSettings, PageText } from './model.ts'
import { splitByStructure } from './structure-split.ts'
import { CharacterMeasure, type TextMeasure } from './text-measure.ts'
import { tokenMeasure } from './token-measure.ts'

/** Thrown above the limits for the number of chunks and for their total size. */
export class ChunkLimitError extends AppError {
  constructor(message: string) {
    super('INGESTION_FAILED', { message })
  }
}

/** The settings of the same names. */
type Limits = { INGESTION_MAX_CHUNKS: number; INGESTION_MAX_TEXT_BYTES: number }

/** Position of a chunk in code units of the joined text, end exclusive. */
type Span = { start: number; end: number; page_number: number | null; context: string | null }

/** Maximum time between yields to the event loop. */
const YIELD_MS = 10

/** Joins pages with line breaks; offsets of chunks refer to the joined text. */
export const joinPages = (pages: PageText[]): string => pages.map(page => page.text).join('\n')

/**
 * Splits the pages of a document into chunks, in order; a blank text has none. Yields to the event loop every 10 ms.
 * Throws ChunkLimitError above INGESTION_MAX_CHUNKS, and when the chunks exceed twice INGESTION_MAX_TEXT_BYTES in
 * total, because an overlap almost as large as a chunk repeats the text many times.
 */
export async function splitPages(
  pages: PageText[],
  settings: ChunkSettings,
  { title, limits }: { title: string | null; limits: Limits },
): Promise<ChunkDraft[]> {
  const text = joinPages(pages)
  if (!/\S/.test(text)) return []
  const starts = new CharacterMeasure(text)
  const ends = new CharacterMeasure(text)
  const chunks: ChunkDraft[] = []
  const maxBytes = 2 * limits.INGESTION_MAX_TEXT_BYTES
  let bytes = 0
  let since = performance.now()
  for await (const span of await spansOf(text, pages, settings, title)) {
    if (chunks.length === limits.INGESTION_MAX_CHUNKS) {
      throw new ChunkLimitError(`The text results in more than ${chunks.length} chunks (INGESTION_MAX_CHUNKS)`)
    }
    await starts.measure(span.start)
    const content = text.slice(span.start, span.end)
    bytes += Buffer.byteLength(content)
    if (bytes > maxBytes) {
      throw new ChunkLimitError(
        `The chunks contain more than ${maxBytes} bytes of text (twice INGESTION_MAX_TEXT_BYTES)`,
      )
    }
    chunks.push({
      chunk_index: chunks.length,
      page_number: span.page_number,
      char_start: starts.index(span.start),
      char_end: ends.index(span.end),
      content,
      context: span.context,
    })
    if (performance.now() - since > YIELD_MS) {
      await yieldToEventLoop()
      since = performance.now()
    }
  }
  return chunks
}

async function spansOf(
  text: string,
  pages: PageText[],
  settings: ChunkSettings,
  title: string | null,
): Promise<Iterable<Span> | AsyncIterable<Span>> {
  const { chunk_strategy, chunk_unit, chunk_size, chunk_overlap } = settings
  const whole = { start: 0, end: text.length, page_number: null, context: null }
  if (chunk_strategy === 'page') return pages.some(page => page.number !== null) ? pageSpans(pages) : [whole]
  if (chunk_strategy === 'whole') return [whole]
  const size = chunk_size as number
  const overlap = chunk_overlap as number
  const split = (ends: TextMeasure, starts: TextMeasure) =>
    chunk_strategy === 'auto'
      ? addPageNumbers(splitByStructure(ends, size, overlap, { title, borders: pageBorders(pages) }), pages)
      : windowSpans({ starts, ends }, size, overlap)
  if (chunk_unit !== 'tokens') return split(new CharacterMeasure(text), new CharacterMeasure(text))
  const measure = await tokenMeasure(text)
  return split(measure, measure)
}

/** Returns the starts of all pages but the first in the joined text. */
function pageBorders(pages: PageText[]): ReadonlySet<number> {
  const borders = new Set<number>()
  let start = 0
  for (const page of pages.slice(0, -1)) {
    start += page.text.length + 1
    borders.add(start)
  }
  return borders
}

/** Adds to spans, in ascending order, the number of the page on which they start. */
async function* addPageNumbers(
  spans: AsyncIterable<Omit<Span, 'page_number'>>,
  pages: PageText[],
): AsyncGenerator<Span> {
  let page = 0
  let next = pages[0].text.length + 1
  for await (const span of spans) {
    while (span.start >= next) next += pages[++page].text.length + 1
    yield { ...span, page_number: pages[page].number }
  }
}

function* pageSpans(pages: PageText[]): Generator<Span> {
  let start = 0
  for (const page of pages) {
    const end = start + page.text.length
    if (/\S/.test(page.text)) yield { start, end, page_number: page.number, context: null }
    start = end + 1
  }
}

/**
 * Yields windows of `size` at intervals of `size - overlap`, up to the first that reaches the end. Starts and ends are
 * measured separately, so that a large overlap does not require moving back. Skips windows of tokens that all end
 * within one character.
 */
async function* windowSpans(
  measures: { starts: TextMeasure; ends: TextMeasure },
  size: number,
  overlap: number,
): AsyncGenerator<Span> {
  let reached = 0
  for (let from = 0; reached < measures.ends.text.length; from += size - overlap) {
    const start = measures.starts.offset(from)
    await measures.ends.measure?.(start, size)
    const end = measures.ends.offset(from + size)
    if (end > reached) yield { start, end, page_number: null, context: null }
    reached = end
  }
}
