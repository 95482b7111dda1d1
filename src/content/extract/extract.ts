import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { realpathSync } from 'node:fs'
import path from 'node:path'
import type { Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { TextDecoder } from 'node:util'
import type { RecordedFailure } from '#core/base/errors.ts'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { startConfined } from '#core/threads/confined-process.ts'
import type { PageText } from '../index/chunks/model.ts'
import { CharsetSample } from './charset.ts'
import type { PdfAnswer, PdfRequest } from './pdf-process.ts'

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

/** How long an idle process waits for the next PDF. */
const IDLE_MS = 30_000

/** Size and bytes of a file. */
export type PdfBytes = { size: number; pieces: AsyncIterable<Uint8Array> }

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
  load: () => Promise<PdfBytes>,
  limits: Limits,
  options: { project: string; timeoutMs?: number; signal?: AbortSignal },
): Promise<Extraction> {
  const { project, timeoutMs = PDF_TIMEOUT_MS, signal } = options
  return slotsFor(limits.INGESTION_PDF_PROCESSES).use(project, 1, signal, async () => {
    const bytes = await load()
    signal?.throwIfAborted()
    return readPdf(bytes, requestOf(bytes, limits, false), timeoutMs, signal)
  })
}

/**
 * Returns the number of pages of a PDF, or null if it cannot be read within the limits of time and memory. Runs like
 * extractPdf.
 */
export async function countPdfPages(
  load: () => Promise<PdfBytes>,
  limits: Limits,
  { project, timeoutMs, signal }: { project: string; timeoutMs: number; signal?: AbortSignal },
): Promise<number | null> {
  return slotsFor(limits.INGESTION_PDF_PROCESSES).use(project, 1, signal, async () => {
    const bytes = await load()
    const counted = await readPdf(bytes, requestOf(bytes, limits, true), timeoutMs, signal)
    return counted.ok ? counted.total_pages : null
  })
}

const requestOf = ({ size }: PdfBytes, limits: Limits, countOnly: boolean): PdfRequest => ({
  size,
  maxPages: limits.INGESTION_MAX_PAGES,
  maxTextBytes: limits.INGESTION_MAX_TEXT_BYTES,
  countOnly,
})

async function readPdf(
  bytes: PdfBytes,
  request: PdfRequest,
  timeoutMs: number,
  signal: AbortSignal | undefined,
): Promise<Extraction> {
  const reader = idle.pop() ?? startReader()
  clearTimeout(reader.idleTimer)
  return new Promise<Extraction>((resolve, reject) => {
    const pages: PageText[] = []
    const finish = (outcome: Extraction) => {
      release()
      resolve(outcome)
    }
    const onMessage = (answer: PdfAnswer) => {
      if ('page' in answer) return pages.push(answer.page)
      const { end } = answer
      if (end.ok) finish({ ok: true, pages, total_pages: end.total_pages })
      else finish(failure(end.code, end.message))
      if (end.reusable) reuseLater(reader)
      else reader.child.disconnect()
    }
    const onExit = (code: number | null, exitSignal: NodeJS.Signals | null) => {
      // V8 exits with SIGABRT when its heap is full; the monitor sends SIGUSR2.
      if (exitSignal === 'SIGUSR2' || exitSignal === 'SIGABRT') {
        finish(failure('INGESTION_FAILED', `Reading the PDF required more than ${PDF_MEMORY_BYTES} bytes of memory`))
      } else finish(failure('INGESTION_FAILED', `The PDF process exited with ${exitSignal ?? code}`, true))
    }
    const onError = (error: Error) =>
      finish(failure('INGESTION_FAILED', `Reading the PDF failed: ${error.message}`, true))
    let timer: NodeJS.Timeout | undefined
    // The time limit starts once the process has all bytes.
    const startTimer = () => {
      timer = setTimeout(() => {
        finish(failure('INGESTION_FAILED', `Reading the PDF took longer than ${timeoutMs} ms`))
        reader.child.kill('SIGKILL')
      }, timeoutMs)
    }
    const fail = (error: unknown) => {
      release()
      reader.child.kill('SIGKILL')
      reject(error)
    }
    const onAbort = () => fail(signal?.reason)
    const sending = new AbortController()
    const release = () => {
      clearTimeout(timer)
      sending.abort()
      reader.child.off('message', onMessage)
      reader.child.off('exit', onExit)
      reader.child.off('error', onError)
      signal?.removeEventListener('abort', onAbort)
    }
    reader.child.on('message', onMessage)
    reader.child.once('exit', onExit)
    reader.child.once('error', onError)
    signal?.addEventListener('abort', onAbort)
    reader.child.send(request)
    const { signal: stopSending } = sending
    sendPieces(bytes.pieces, reader.child.stdin as Writable, stopSending).then(
      () => stopSending.aborted || startTimer(),
      error => stopSending.aborted || fail(error),
    )
  })
}

/** Writes pieces with backpressure until the end or until `signal` aborts. Throws errors of the pieces. */
async function sendPieces(pieces: AsyncIterable<Uint8Array>, target: Writable, signal: AbortSignal): Promise<void> {
  for await (const piece of pieces) {
    if (signal.aborted) return
    if (!target.write(piece)) await once(target, 'drain', { signal }).catch(() => {})
  }
}

type Reader = { child: ChildProcess; idleTimer?: NodeJS.Timeout }

/** Idle processes; never more than INGESTION_PDF_PROCESSES. */
const idle: Reader[] = []

function reuseLater(reader: Reader) {
  reader.idleTimer = setTimeout(() => reader.child.disconnect(), IDLE_MS).unref()
  idle.push(reader)
}

/** Directory of pdf.js, with symbolic links resolved. */
const PDFJS = `${path.dirname(realpathSync(fileURLToPath(import.meta.resolve('pdfjs-dist/package.json'))))}/`

/**
 * Permissions of the PDF process: it may read its own code and pdf.js, but no other file (such as environments of
 * processes or the data directory), and start its monitor thread.
 */
export const READER_RIGHTS = [
  '--permission',
  `--allow-fs-read=${realpathSync(fileURLToPath(new URL('./', import.meta.url)))}/`,
  `--allow-fs-read=${PDFJS}`,
  '--allow-worker',
]

/** Starts a PDF process with an empty environment and READER_RIGHTS. It exits when its channel is closed. */
function startReader(): Reader {
  const program = new URL('./pdf-process.ts', import.meta.url)
  const child = startConfined(
    program,
    [String(PDF_MEMORY_BYTES), PDFJS],
    ['--max-old-space-size=384', ...READER_RIGHTS],
  )
  const reader: Reader = { child }
  const removeIdle = () => {
    clearTimeout(reader.idleTimer)
    const at = idle.indexOf(reader)
    if (at >= 0) idle.splice(at, 1)
  }
  child.once('disconnect', removeIdle)
  child.once('exit', removeIdle)
  return reader
}

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
