import { setImmediate as nextTurn } from 'node:timers/promises'
import type { ChunkDraft, ChunkSettings, PageText } from './model.ts'
import { splitByStructure } from './structure-split.ts'
import { CharacterMeasure, type TextMeasure } from './text-measure.ts'
import { tokenMeasure } from './token-measure.ts'

/** Raised when a text makes more chunks, or more text in chunks, than a document may have. */
export class ChunkLimitError extends Error {}

/** The settings of the same names. */
type Limits = { INGESTION_MAX_CHUNKS: number; INGESTION_MAX_TEXT_BYTES: number }

/** A chunk by its place: code units of the joined text, end exclusive. */
type Span = { start: number; end: number; page_number: number | null; context: string | null }

/** How long cutting may keep the process from its other work, in milliseconds. */
const TURN_MS = 10

/** The text that offsets of chunks count in: the pages, each on lines of its own. */
export const joinPages = (pages: PageText[]): string => pages.map(page => page.text).join('\n')

/**
 * Cuts the pages of a document into chunks, in order. A text without anything but whitespace gives none. Other work of
 * the process goes on in between. Throws ChunkLimitError over INGESTION_MAX_CHUNKS, and as soon as the chunks together
 * would hold more than twice INGESTION_MAX_TEXT_BYTES: an overlap almost as large as a chunk repeats a text many times.
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
      throw new ChunkLimitError(`The text makes more than ${chunks.length} chunks (INGESTION_MAX_CHUNKS)`)
    }
    await starts.measure(span.start)
    const content = text.slice(span.start, span.end)
    bytes += Buffer.byteLength(content)
    if (bytes > maxBytes) {
      throw new ChunkLimitError(`The chunks hold more than ${maxBytes} bytes of text (twice INGESTION_MAX_TEXT_BYTES)`)
    }
    chunks.push({
      chunk_index: chunks.length,
      page_number: span.page_number,
      char_start: starts.index(span.start),
      char_end: ends.index(span.end),
      content,
      context: span.context,
    })
    if (performance.now() - since > TURN_MS) {
      await nextTurn()
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
  const cut = (ends: TextMeasure, starts: TextMeasure) =>
    chunk_strategy === 'auto'
      ? onPages(splitByStructure(ends, size, overlap, { title, borders: bordersOf(pages) }), pages)
      : windows({ starts, ends }, size, overlap)
  if (chunk_unit !== 'tokens') return cut(new CharacterMeasure(text), new CharacterMeasure(text))
  const ruler = await tokenMeasure(text)
  return cut(ruler, ruler)
}

/** Where pages begin in the joined text, the first one apart. */
function bordersOf(pages: PageText[]): ReadonlySet<number> {
  const borders = new Set<number>()
  let start = 0
  for (const page of pages.slice(0, -1)) {
    start += page.text.length + 1
    borders.add(start)
  }
  return borders
}

/** Gives spans, whose starts rise, the numbers of the pages they start on. */
async function* onPages(spans: AsyncIterable<Omit<Span, 'page_number'>>, pages: PageText[]): AsyncGenerator<Span> {
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
 * Windows of `size` that start `size - overlap` after each other; the last is the first that reaches the end. Starts
 * and ends are walked along separately, so that a large overlap does not make the walk longer. A window of tokens that
 * all end within one character adds nothing and is left out.
 */
async function* windows(
  rulers: { starts: TextMeasure; ends: TextMeasure },
  size: number,
  overlap: number,
): AsyncGenerator<Span> {
  let reached = 0
  for (let from = 0; reached < rulers.ends.text.length; from += size - overlap) {
    const start = rulers.starts.offset(from)
    await rulers.ends.measure?.(start, size)
    const end = rulers.ends.offset(from + size)
    if (end > reached) yield { start, end, page_number: null, context: null }
    reached = end
  }
}
