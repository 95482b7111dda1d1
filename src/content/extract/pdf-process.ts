import { once } from 'node:events'
import { pathToFileURL } from 'node:url'
import { Worker } from 'node:worker_threads'

/**
 * The program in which PDFs are read, one after the other: extract.ts starts it, sends a PdfRequest and the bytes to
 * its standard input, and gets the pages one by one. It holds no secret and may be killed at any time.
 */
export type PdfRequest = { size: number; maxPages: number; maxTextBytes: number }
export type PdfAnswer =
  | { page: { number: number; text: string } }
  | { end: ({ ok: true; total_pages: number } | Failure) & { reusable: boolean } }
type Failure = { ok: false; code: 'PDF_PARSE_FAILED' | 'INGESTION_FAILED'; message: string }

const [maxMemoryBytes, pdfjs] = [Number(process.argv[2]), process.argv[3]]

// By its path: the links that lead there are files that this process may not read.
const moduleOf = (file: string) => pathToFileURL(`${pdfjs}legacy/build/${file}`).href
const { getDocument }: typeof import('pdfjs-dist/legacy/build/pdf.mjs') = await import(moduleOf('pdf.mjs'))
// What pdf.js would otherwise import when it opens the first document.
await import(moduleOf('pdf.worker.mjs'))

/**
 * Nothing is fetched, compiled or drawn; of files only predefined character maps are read, without which most text in
 * Chinese, Japanese and Korean fonts is lost.
 */
const OPTIONS = {
  verbosity: 0,
  cMapUrl: `${pdfjs}cmaps/`,
  useSystemFonts: false,
  disableFontFace: true,
  useWorkerFetch: false,
  useWasm: false,
  isOffscreenCanvasSupported: false,
  isImageDecoderSupported: false,
  enableXfa: false,
}

class LimitError extends Error {}

async function extract(bytes: Uint8Array, { maxPages, maxTextBytes }: PdfRequest): Promise<number> {
  const pdf = await getDocument({ data: bytes, ...OPTIONS }).promise
  try {
    const total = pdf.numPages
    if (total > maxPages) throw new LimitError(`The PDF has more than ${maxPages} pages (INGESTION_MAX_PAGES)`)
    let left = maxTextBytes
    for (let number = 1; number <= total; number++) {
      const page = await pdf.getPage(number)
      let text = ''
      for await (const { items } of page.streamTextContent()) {
        for (const item of items) {
          const part = item.hasEOL ? `${item.str}\n` : (item.str ?? '')
          left -= Buffer.byteLength(part)
          text += part
        }
        if (left < 0) {
          throw new LimitError(`The text is longer than ${maxTextBytes} bytes (INGESTION_MAX_TEXT_BYTES)`)
        }
      }
      page.cleanup()
      text = text.replaceAll('\0', '').toWellFormed().trim()
      if (text) answer({ page: { number, text } })
    }
    return total
  } finally {
    await pdf.loadingTask.destroy()
  }
}

function failure(error: unknown): Failure {
  const { name, message } = error instanceof Error ? error : new Error(String(error))
  if (error instanceof LimitError) return { ok: false, code: 'INGESTION_FAILED', message }
  const reason = name === 'PasswordException' ? 'it opens with a password only' : message.slice(0, 200)
  return { ok: false, code: 'PDF_PARSE_FAILED', message: `The file cannot be read as a PDF: ${reason}` }
}

const answer = (message: PdfAnswer) => process.send?.(message)

async function read(request: PdfRequest): Promise<void> {
  const bytes = new Uint8Array(request.size)
  for (let filled = 0; filled < request.size; ) {
    const part = process.stdin.read(Math.min(request.size - filled, process.stdin.readableLength)) as Buffer | null
    if (!part) {
      await once(process.stdin, 'readable')
      continue
    }
    bytes.set(part, filled)
    filled += part.length
  }
  const outcome = await extract(bytes, request).then(total_pages => ({ ok: true as const, total_pages }), failure)
  answer({ end: { ...outcome, reusable: process.memoryUsage.rss() < maxMemoryBytes / 2 } })
}

// The reader leaves promises behind that fail with the document they belonged to; its outcome has been reported.
process.on('unhandledRejection', () => {})
process.on('disconnect', () => process.exit())

const monitor = new Worker(new URL('./pdf-monitor.ts', import.meta.url), {
  workerData: { parent: process.ppid, maxMemoryBytes },
  resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 4 },
})
await once(monitor, 'online')
process.on('message', request => void read(request as PdfRequest))
