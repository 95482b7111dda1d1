import type { Services } from '#core/base/services.ts'
import { countPdfPages } from '../extract/extract.ts'
import type { MediaProblem } from './media.ts'
import { MAX_PDF_PAGES } from './media-limits.ts'

/** Time to read the structure of a PDF. */
const TIMEOUT_MS = 15_000

/** Returns why a PDF is not accepted, or null. It is read in a separate process with bounded time and memory. */
export async function pdfProblem(
  { config }: Pick<Services, 'config'>,
  file: { project: string; size: number; pieces: () => AsyncIterable<Uint8Array> },
  signal?: AbortSignal,
): Promise<MediaProblem | null> {
  const { project, size, pieces } = file
  const pages = await countPdfPages(async () => ({ size, pieces: pieces() }), config, {
    project,
    timeoutMs: TIMEOUT_MS,
    signal,
  })
  if (pages === null) return { reason: 'content', message: 'The PDF cannot be read' }
  if (pages <= MAX_PDF_PAGES) return null
  return { reason: 'pages', message: `The PDF has ${pages} pages; at most ${MAX_PDF_PAGES} are accepted` }
}
