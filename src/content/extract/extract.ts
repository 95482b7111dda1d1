import { realpathSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { TextDecoder } from 'node:util'
import type { RecordedFailure } from '#core/base/errors.ts'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { ConfinedProcesses, type Content, rightsOf } from '#core/threads/confined-processes.ts'
import type { PageText } from '../index/chunks/model.ts'
import { CharsetSample } from './charset.ts'
import type { PdfAnswer, PdfPage, PdfRequest } from './pdf-process.ts'

/**
 * Text of a source, or the failure. `charset`: of a text, if it was detected. `retry`: whether another attempt may
 * succeed.
 */
export type Extraction =
  | { ok: true; pages: PageText[]; total_pages: number; charset?: string | null }
  | { ok: false; error: RecordedFailure; retry: boolean }

type Limits = { INGESTION_MAX_PAGES: number; INGESTION_MAX_TEXT_BYTES: number; INGESTION_PDF_PROCESSES: number }

/** Limits for one PDF: duration, and memory of the process including program and file. */
const PDF_TIMEOUT_MS = 120_000
const PDF_MEMORY_BYTES = 512 * 1024 * 1024

/** Slots for PDF processes, by INGESTION_PDF_PROCESSES. */
const slots = new Map<number, FairSemaphore>()

function slotsFor(capacity: number): FairSemaphore {
  const semaphore = slots.get(capacity) ?? new FairSemaphore(capacity)
  slots.set(capacity, semaphore)
  return semaphore
}

/**
 * Extracts the text of a PDF by page in reading order: trimmed, without blank pages, numbered from 1 as in the file.
 * `total_pages` includes blank pages. The file is parsed in a separate process, which is killed above the limits of
 * time and memory; crashes are returned as failures. At most INGESTION_PDF_PROCESSES run concurrently; time spent
 * waiting for a slot does not count. Throws the reason of `signal` and errors of `load` and its pieces.
 * @param load returns the bytes of the file once a slot is acquired
 * @param limits the settings of the same names
 * @param options `project`: owner of the file; the project with the fewest slots acquires the next one
 */
export async function extractPdf(
  load: () => Promise<Content>,
  limits: Limits,
  options: { project: string; timeoutMs?: number; signal?: AbortSignal },
): Promise<Extraction> {
  const { project, timeoutMs = PDF_TIMEOUT_MS, signal } = options
  return slotsFor(limits.INGESTION_PDF_PROCESSES).use(project, 1, signal, () =>
    readPdf(load, requestOf(limits, false), timeoutMs, signal),
  )
}

/**
 * Returns the number of pages of a PDF, or null if it cannot be read within the limits of time and memory. Runs like
 * extractPdf.
 */
export async function countPdfPages(
  load: () => Promise<Content>,
  limits: Limits,
  { project, timeoutMs, signal }: { project: string; timeoutMs: number; signal?: AbortSignal },
): Promise<number | null> {
  return slotsFor(limits.INGESTION_PDF_PROCESSES).use(project, 1, signal, async () => {
    const counted = await readPdf(load, requestOf(limits, true), timeoutMs, signal)
    return counted.ok ? counted.total_pages : null
  })
}

const requestOf = (limits: Limits, countOnly: boolean): PdfRequest => ({
  maxPages: limits.INGESTION_MAX_PAGES,
  maxTextBytes: limits.INGESTION_MAX_TEXT_BYTES,
  countOnly,
})

async function readPdf(
  load: () => Promise<Content>,
  request: PdfRequest,
  timeoutMs: number,
  signal: AbortSignal | undefined,
): Promise<Extraction> {
  const outcome = await readers.run(request, load, { timeoutMs, signal })
  switch (outcome.kind) {
    case 'answered': {
      const { answer, parts: pages } = outcome
      return answer.ok ? { ok: true, pages, total_pages: answer.total_pages } : failure(answer.code, answer.message)
    }
    case 'memory':
      return failure('INGESTION_FAILED', `Reading the PDF required more than ${PDF_MEMORY_BYTES} bytes of memory`)
    case 'timeout':
      return failure('INGESTION_FAILED', `Reading the PDF took longer than ${timeoutMs} ms`)
    case 'exited':
      return failure('INGESTION_FAILED', `The PDF process exited with ${outcome.exit}`, true)
    case 'unusable':
      return failure('INGESTION_FAILED', `Reading the PDF failed: ${outcome.reason}`, true)
  }
}

/** Directory of pdf.js, with symbolic links resolved. */
const PDFJS = `${path.dirname(realpathSync(fileURLToPath(import.meta.resolve('pdfjs-dist/package.json'))))}/`

const PDF_PROGRAM = {
  file: new URL('./pdf-process.ts', import.meta.url),
  args: [PDFJS],
  reads: [PDFJS],
  memoryBytes: PDF_MEMORY_BYTES,
  heapMebibytes: 384,
}

/** Options of Node for the PDF process. */
export const READER_RIGHTS = rightsOf(PDF_PROGRAM)

const readers = new ConfinedProcesses<PdfRequest, PdfPage, PdfAnswer>(PDF_PROGRAM)

function failure(code: string, message: string, retry = false): Extraction {
  return { ok: false, error: { code, message }, retry }
}

/**
 * Decodes a `text/*` file as one page: UTF-16 with a byte order mark, else the charset of the content type, else UTF-8,
 * else the charset that its bytes show. Removes the byte order mark and U+0000, and trims. Returns no page for blank
 * text, and a failure if no charset fits. Stops reading at the text limit.
 * @param open returns the bytes from the start; called again to decode them in a detected charset
 * @param limits the setting of the same name, in bytes of UTF-8
 */
export async function extractText(
  open: () => AsyncIterable<Uint8Array>,
  contentType: string,
  limits: Pick<Limits, 'INGESTION_MAX_TEXT_BYTES'>,
): Promise<Extraction> {
  const maxBytes = limits.INGESTION_MAX_TEXT_BYTES
  const sample = new CharsetSample()
  const text = await decodePieces(open(), start => decoderOf(contentType, start), maxBytes, sample)
  if (text !== 'invalid') return textExtraction(text, null, maxBytes)
  const charset = sample.detect()
  if (charset === null) return UNKNOWN_CHARSET
  const detected = await decodePieces(open(), () => new TextDecoder(charset, { fatal: true }), maxBytes)
  return detected === 'invalid' ? UNKNOWN_CHARSET : textExtraction(detected, charset, maxBytes)
}

function textExtraction(text: string | 'too long', charset: string | null, maxBytes: number): Extraction {
  if (text === 'too long') return { ok: false, error: textTooLong(maxBytes), retry: false }
  const pages = text === '' ? [] : [{ number: null, text }]
  return { ok: true, pages, total_pages: pages.length, charset }
}

const UNKNOWN_CHARSET = failure(
  'FILE_PARSE_FAILED',
  'The text is not valid UTF-8, and its charset cannot be recognized. Give the file a content type with its charset, such as `text/plain; charset=windows-1252`.',
)

/** Returns a decoded and trimmed text; `invalid` if bytes are no characters, after completing the sample. */
async function decodePieces(
  pieces: AsyncIterable<Uint8Array>,
  decoderFor: (start: Uint8Array) => TextDecoder,
  maxBytes: number,
  sample?: CharsetSample,
): Promise<string | 'too long' | 'invalid'> {
  const parts: string[] = []
  let bytes = 0
  /** Trailing white space, which counts only if more text follows. */
  let blank = ''
  const append = (decoded: string) => {
    const part = decoded.replaceAll('\0', '')
    const text = (parts.length ? part : part.trimStart()).trimEnd()
    if (text) {
      bytes += Buffer.byteLength(blank) + Buffer.byteLength(text)
      parts.push(blank, text)
      blank = part.slice(part.trimEnd().length)
    } else if (parts.length && blank.length <= maxBytes) blank += part
    return bytes <= maxBytes
  }
  let start: Uint8Array = Buffer.alloc(0)
  let decoder: TextDecoder | null = null
  let isInvalid = false
  const decode = (piece?: Uint8Array) => {
    try {
      return append(
        piece ? (decoder as TextDecoder).decode(piece, { stream: true }) : (decoder as TextDecoder).decode(),
      )
    } catch {
      isInvalid = true
      return true
    }
  }
  for await (let piece of pieces) {
    sample?.add(piece)
    if (isInvalid) {
      if (sample?.full ?? true) break
      continue
    }
    if (!decoder) {
      start = Buffer.concat([start, piece])
      if (start.length < 2) continue
      decoder = decoderFor(start)
      piece = start
    }
    if (!decode(piece)) return 'too long'
  }
  if (!decoder) {
    decoder = decoderFor(start)
    decode(start)
  }
  if (!isInvalid && !decode()) return 'too long'
  return isInvalid ? 'invalid' : parts.join('')
}

/** @param start the first two bytes, or fewer in a shorter file */
function decoderOf(contentType: string, [first, second]: Uint8Array): TextDecoder {
  if (first === 0xff && second === 0xfe) return new TextDecoder('utf-16le', { fatal: true })
  if (first === 0xfe && second === 0xff) return new TextDecoder('utf-16be', { fatal: true })
  const charset = /;\s*charset\s*=\s*"?([^\s";]+)/i.exec(contentType)?.[1]
  try {
    return new TextDecoder(charset, { fatal: true })
  } catch {
    return new TextDecoder('utf-8', { fatal: true })
  }
}

/** Returns the failure for text of more than `maxBytes` bytes of UTF-8, or null. */
export function textLimitFailure(pages: PageText[], maxBytes: number): RecordedFailure | null {
  const bytes = pages.reduce((sum, page) => sum + Buffer.byteLength(page.text) + 1, -1)
  return bytes > maxBytes ? textTooLong(maxBytes) : null
}

const textTooLong = (maxBytes: number): RecordedFailure => ({
  code: 'INGESTION_FAILED',
  message: `The text is longer than ${maxBytes} bytes (INGESTION_MAX_TEXT_BYTES)`,
})
