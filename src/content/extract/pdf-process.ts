import { pathToFileURL } from 'node:url'
import { answerRequests, programArguments } from '#core/threads/confined-program.ts'

/**
 * Program that parses PDFs, which extract.ts starts; it sends the pages one by one. It has no secrets and may be killed at
 * any time.
 */
/** `countOnly`: the pages are counted and not read. */
export type PdfRequest = { maxPages: number; maxTextBytes: number; countOnly: boolean }
export type PdfPage = { number: number; text: string }
export type PdfAnswer =
  | { ok: true; total_pages: number }
  | { ok: false; code: 'PDF_PARSE_FAILED' | 'INGESTION_FAILED'; message: string }

const [pdfjs] = programArguments()

// By real path: this process may not read the symbolic links to it.
const moduleOf = (file: string) => pathToFileURL(`${pdfjs}legacy/build/${file}`).href
const { getDocument }: typeof import('pdfjs-dist/legacy/build/pdf.mjs') = await import(moduleOf('pdf.mjs'))
// Otherwise pdf.js imports it when it opens the first document.
await import(moduleOf('pdf.worker.mjs'))

/**
 * Nothing is fetched, compiled or drawn. The only files read are predefined character maps, without which most text in
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

const textTooLong = (maxTextBytes: number) =>
  new LimitError(`The text is longer than ${maxTextBytes} bytes (INGESTION_MAX_TEXT_BYTES)`)

/** The parts of an annotation of pdf.js that describe a form field. */
type FormField = {
  subtype?: string
  fieldType?: string
  fieldName?: string
  alternativeText?: string
  fieldValue?: unknown
  password?: boolean
  checkBox?: boolean
  radioButton?: boolean
  exportValue?: string
  buttonValue?: string
  options?: { exportValue: string; displayValue: string }[]
}

/** Returns a line with label and value for each filled form field of a page. Passwords and signatures are omitted. */
function* formValues(fields: readonly FormField[]): Generator<string> {
  for (const field of fields) {
    if (field.subtype !== 'Widget' || field.password || field.fieldType === 'Sig') continue
    const { fieldValue, checkBox, radioButton, options = [] } = field
    // Each button of a group has the value of the group.
    if ((checkBox || radioButton) && fieldValue !== (checkBox ? field.exportValue : field.buttonValue)) continue
    const values = (Array.isArray(fieldValue) ? fieldValue : [fieldValue])
      .filter(value => typeof value === 'string' && value.trim() !== '')
      .map(value => options.find(({ exportValue }) => exportValue === value)?.displayValue ?? value)
    if (values.length > 0) yield `${field.alternativeText || field.fieldName || 'Field'}: ${values.join(', ')}`
  }
}

async function extract(
  bytes: Uint8Array,
  { maxPages, maxTextBytes, countOnly }: PdfRequest,
  send: (page: PdfPage) => void,
): Promise<number> {
  const pdf = await getDocument({ data: bytes, ...OPTIONS }).promise
  try {
    const total = pdf.numPages
    if (countOnly) return total
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
        if (left < 0) throw textTooLong(maxTextBytes)
      }
      for (const line of formValues(await page.getAnnotations())) {
        text += `\n${line}`
        left -= Buffer.byteLength(line) + 1
      }
      if (left < 0) throw textTooLong(maxTextBytes)
      page.cleanup()
      text = text.replaceAll('\0', '').toWellFormed().trim()
      if (text) send({ number, text })
    }
    return total
  } finally {
    await pdf.loadingTask.destroy()
  }
}

function toFailure(error: unknown): PdfAnswer {
  const { name, message } = error instanceof Error ? error : new Error(String(error))
  if (error instanceof LimitError) return { ok: false, code: 'INGESTION_FAILED', message }
  const reason = name === 'PasswordException' ? 'it is protected by a password' : message.slice(0, 200)
  return { ok: false, code: 'PDF_PARSE_FAILED', message: `The file cannot be read as a PDF: ${reason}` }
}

// pdf.js leaves promises that reject after the outcome of their document was reported.
process.on('unhandledRejection', () => {})

await answerRequests<PdfRequest, PdfPage, PdfAnswer>(({ buffer }, request, send) =>
  // pdf.js refuses a Buffer, and takes its memory.
  extract(new Uint8Array(buffer), request, send).then(total_pages => ({ ok: true, total_pages }), toFailure),
)
