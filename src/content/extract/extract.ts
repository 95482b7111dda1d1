import { TextDecoder } from 'node:util'
import type { RecordedFailure } from '../../core/errors.ts'
import type { Page } from '../chunks/model.ts'

/** Text of a source, or why there is none. `retry` says whether another try could end otherwise. */
export type Extraction =
  | { ok: true; pages: Page[]; total_pages: number }
  | { ok: false; error: RecordedFailure; retry: boolean }

/**
 * Text of a `text/*` file as one page: decoded with the charset of its content type (UTF-8 where it names none we
 * know), without a byte order mark and U+0000, bytes that are no characters as U+FFFD, trimmed. No page when nothing is
 * left.
 */
export function extractText(bytes: Buffer, contentType: string): Page[] {
  const text = decoderOf(contentType).decode(bytes).replaceAll('\0', '').trim()
  return text ? [{ number: null, text }] : []
}

function decoderOf(contentType: string): TextDecoder {
  const charset = /;\s*charset\s*=\s*"?([^\s";]+)/i.exec(contentType)?.[1]
  try {
    return new TextDecoder(charset)
  } catch {
    return new TextDecoder()
  }
}

/** Why this text is too long for a document, or null. `maxBytes` counts UTF-8. */
export function tooMuchText(pages: Page[], maxBytes: number): RecordedFailure | null {
  const bytes = pages.reduce((sum, page) => sum + Buffer.byteLength(page.text) + 1, -1)
  return bytes > maxBytes
    ? { code: 'INGESTION_FAILED', message: `The text is longer than ${maxBytes} bytes (INGESTION_MAX_TEXT_BYTES)` }
    : null
}
