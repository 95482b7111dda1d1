import { truncateBytes } from '#core/base/storable-text.ts'
import type { CoveredMessage } from './store.ts'

/** Who wrote a message, by its origin or its role. */
const SPEAKERS: Record<string, string> = {
  end_user: 'user',
  agent: 'assistant',
  operator: 'colleague',
  approval: 'platform',
  system: 'platform',
}

/** Escapes angle brackets in JSON, so that no text closes or opens a fence. */
const fenceable = (value: unknown): string => JSON.stringify(value).replaceAll('<', '\\u003c')

/** Returns a message as a line of JSON, or null if its text was erased. */
export function transcriptLine(
  { role, origin, author, content, is_document }: Omit<CoveredMessage, 'document_id' | 'position'>,
  maxBytes: number,
): string | null {
  if (content === null && !is_document) return null
  const from = SPEAKERS[origin ?? ''] ?? role
  const text = content === null ? '(a document of the project)' : truncateBytes(content, maxBytes)
  return fenceable({ from, ...(author === null ? {} : { name: author }), text })
}

/** Returns lines of a transcript as data for a model. */
export const fencedTranscript = (lines: readonly string[]): string => `<transcript>\n${lines.join('\n')}\n</transcript>`

/** Returns an earlier summary as data for a model. */
export const fencedSummary = (text: string): string => `<summary>\n${fenceable(text)}\n</summary>`
