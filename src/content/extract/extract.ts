import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { realpathSync } from 'node:fs'
import path from 'node:path'
import type { Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { TextDecoder } from 'node:util'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { FairSemaphore } from '../../core/process/fair-semaphore.ts'
import type { PageText } from '../chunks/model.ts'
import type { PdfAnswer, PdfRequest } from './pdf-process.ts'

/** Text of a source, or why there is none. `retry` says whether another try could end otherwise. */
export type Extraction =
  | { ok: true; pages: PageText[]; total_pages: number }
  | { ok: false; error: RecordedFailure; retry: boolean }

type Limits = { INGESTION_MAX_PAGES: number; INGESTION_MAX_TEXT_BYTES: number; INGESTION_PDF_PROCESSES: number }

/** What one PDF may cost: time of its process, and its memory at any moment with the program and the file itself. */
const PDF_TIMEOUT_MS = 120_000
const PDF_MEMORY_BYTES = 512 * 1024 * 1024

/** How long a process waits for the next PDF. */
const IDLE_MS = 30_000

/** Bytes of a file as they are read, and how many there are. */
export type PdfBytes = { size: number; pieces: AsyncIterable<Uint8Array> }

/** Turns at reading a PDF, by how many there are. */
const turns = new Map<number, FairSemaphore>()

function turnsOf(most: number): FairSemaphore {
  const known = turns.get(most) ?? new FairSemaphore(most)
  turns.set(most, known)
  return known
}

/**
 * Text of a PDF by page in reading order: trimmed, without blank pages, numbered from 1 as in the file. `total_pages`
 * counts the blank ones too. What the file does to its reader is a value: the file is read in a process of its own,
 * which is killed when it takes too long or too much memory; this one passes its bytes on piece by piece. At most
 * INGESTION_PDF_PROCESSES are read at once; the others wait for their turn, which is no part of their time. Throws the
 * reason of `signal` when that aborts, and what `load` and its pieces throw.
 * @param load gives the bytes of the file when it is its turn
 * @param limits the settings of the same names
 * @param options `project`: whose file it is; the project of which least is being read has the next turn
 */
export async function extractPdf(
  load: () => Promise<PdfBytes>,
  limits: Limits,
  options: { project: string; timeoutMs?: number; signal?: AbortSignal },
): Promise<Extraction> {
  const { project, timeoutMs = PDF_TIMEOUT_MS, signal } = options
  return turnsOf(limits.INGESTION_PDF_PROCESSES).use(project, 1, signal, async () => {
    const bytes = await load()
    signal?.throwIfAborted()
    return read(bytes, limits, timeoutMs, signal)
  })
}

async function read(
  bytes: PdfBytes,
  limits: Limits,
  timeoutMs: number,
  signal: AbortSignal | undefined,
): Promise<Extraction> {
  const reader = idle.pop() ?? startReader()
  clearTimeout(reader.idling)
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
      else finish(failed(end.code, end.message))
      if (end.reusable) keep(reader)
      else reader.child.disconnect()
    }
    const onExit = (code: number | null, by: NodeJS.Signals | null) => {
      // V8 ends itself with SIGABRT when its heap is full, the monitor with SIGUSR2.
      if (by === 'SIGUSR2' || by === 'SIGABRT') {
        finish(failed('INGESTION_FAILED', `Reading the PDF took more than ${PDF_MEMORY_BYTES} bytes of memory`))
      } else finish(failed('INGESTION_FAILED', `The process that read the PDF ended with ${by ?? code}`, true))
    }
    const onError = (error: Error) =>
      finish(failed('INGESTION_FAILED', `Reading the PDF failed: ${error.message}`, true))
    let timer: NodeJS.Timeout | undefined
    // The process begins when it has all bytes; how long they take to come is not its fault.
    const begin = () => {
      timer = setTimeout(() => {
        finish(failed('INGESTION_FAILED', `Reading the PDF took longer than ${timeoutMs} ms`))
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
    const request: PdfRequest = {
      size: bytes.size,
      maxPages: limits.INGESTION_MAX_PAGES,
      maxTextBytes: limits.INGESTION_MAX_TEXT_BYTES,
    }
    reader.child.send(request)
    const { signal: done } = sending
    send(bytes.pieces, reader.child.stdin as Writable, done).then(
      () => done.aborted || begin(),
      error => done.aborted || fail(error),
    )
  })
}

/** Passes pieces on as fast as they are taken, until the end or `done`. Throws what the pieces throw. */
async function send(pieces: AsyncIterable<Uint8Array>, target: Writable, done: AbortSignal): Promise<void> {
  for await (const piece of pieces) {
    if (done.aborted) return
    if (!target.write(piece)) await once(target, 'drain', { signal: done }).catch(() => {})
  }
}

type Reader = { child: ChildProcess; idling?: NodeJS.Timeout }

/** Processes that wait for a PDF; there are never more than were read at once. */
const idle: Reader[] = []

function keep(reader: Reader) {
  reader.idling = setTimeout(() => reader.child.disconnect(), IDLE_MS).unref()
  idle.push(reader)
}

/** The directory of pdf.js: where it is, whatever links lead there. */
const PDFJS = `${path.dirname(realpathSync(fileURLToPath(import.meta.resolve('pdfjs-dist/package.json'))))}/`

/**
 * What the reader may: read the files of its own program and nothing else of the machine (the environment of another
 * process is a file too, and the data directory lies beside the code), and start its watching thread.
 */
export const READER_RIGHTS = [
  '--permission',
  `--allow-fs-read=${realpathSync(fileURLToPath(new URL('./', import.meta.url)))}/`,
  `--allow-fs-read=${PDFJS}`,
  '--allow-worker',
]

/**
 * A process with nothing in its environment that reads no files but its own code, writes none and starts no programs. It
 * ends with its channel.
 */
function startReader(): Reader {
  const child = fork(new URL('./pdf-process.ts', import.meta.url), [String(PDF_MEMORY_BYTES), PDFJS], {
    env: {},
    execArgv: ['--max-old-space-size=384', ...READER_RIGHTS],
    stdio: ['pipe', 'ignore', 'ignore', 'ipc'],
    serialization: 'advanced',
  })
  const reader: Reader = { child }
  const forget = () => {
    clearTimeout(reader.idling)
    const at = idle.indexOf(reader)
    if (at >= 0) idle.splice(at, 1)
  }
  child.once('disconnect', forget)
  child.once('exit', forget)
  // What befalls a process that reads shows in its exit; a waiting one is replaced.
  child.on('error', () => {})
  child.stdin?.on('error', () => {})
  child.unref()
  child.channel?.unref()
  return reader
}

const failed = (code: string, message: string, retry = false): Extraction => ({
  ok: false,
  error: { code, message },
  retry,
})

/**
 * Text of a `text/*` file as one page: decoded as UTF-16 where a byte order mark says so, else with the charset of its
 * content type (UTF-8 where it names none we know), without the byte order mark and U+0000, bytes that are no characters
 * as U+FFFD, trimmed. No page when nothing is left. What comes behind the limit of text is not read.
 * @param limits the setting of the same name, in bytes of UTF-8
 */
export async function extractText(
  pieces: AsyncIterable<Uint8Array>,
  contentType: string,
  limits: Pick<Limits, 'INGESTION_MAX_TEXT_BYTES'>,
): Promise<Extraction> {
  const maxBytes = limits.INGESTION_MAX_TEXT_BYTES
  const parts: string[] = []
  let bytes = 0
  /** Whitespace behind the parts, which is text only if something follows. */
  let blank = ''
  const take = (decoded: string) => {
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
  for await (let piece of pieces) {
    if (!decoder) {
      start = Buffer.concat([start, piece])
      if (start.length < 2) continue
      decoder = decoderOf(contentType, start)
      piece = start
    }
    if (!take(decoder.decode(piece, { stream: true }))) return tooLong(maxBytes)
  }
  if (!take(decoder ? decoder.decode() : decoderOf(contentType, start).decode(start))) return tooLong(maxBytes)
  const pages = parts.length ? [{ number: null, text: parts.join('') }] : []
  return { ok: true, pages, total_pages: pages.length }
}

const tooLong = (maxBytes: number): Extraction => ({ ok: false, error: longText(maxBytes), retry: false })

/** @param start the first two bytes, as far as there are so many */
function decoderOf(contentType: string, [first, second]: Uint8Array): TextDecoder {
  if (first === 0xff && second === 0xfe) return new TextDecoder('utf-16le')
  if (first === 0xfe && second === 0xff) return new TextDecoder('utf-16be')
  const charset = /;\s*charset\s*=\s*"?([^\s";]+)/i.exec(contentType)?.[1]
  try {
    return new TextDecoder(charset)
  } catch {
    return new TextDecoder()
  }
}

/** Why this text is too long for a document, or null. `maxBytes` counts UTF-8. */
export function textLimitFailure(pages: PageText[], maxBytes: number): RecordedFailure | null {
  const bytes = pages.reduce((sum, page) => sum + Buffer.byteLength(page.text) + 1, -1)
  return bytes > maxBytes ? longText(maxBytes) : null
}

const longText = (maxBytes: number): RecordedFailure => ({
  code: 'INGESTION_FAILED',
  message: `The text is longer than ${maxBytes} bytes (INGESTION_MAX_TEXT_BYTES)`,
})
