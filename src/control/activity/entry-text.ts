import { parseExactJson } from '#core/base/exact-json.ts'
import { storableText, storableValue, truncateBytes } from '#core/base/storable-text.ts'

const LINE_CHARS = 500
/** Ids of the platform have 34 characters at most. */
const ID_CHARS = 64

/** Returns `text` as one storable line of at most 500 characters. */
export const singleLine = (text: string): string =>
  [...storableText(text.replaceAll(/[\s\p{Cc}]+/gu, ' ').trim())].slice(0, LINE_CHARS).join('')

/** Returns an id as storable text of at most 64 characters. */
export const storableId = (id: string | null | undefined): string | null =>
  id == null ? null : storableText(id).slice(0, ID_CHARS)

/**
 * Returns a detail as JSON text of at most `maxBytes`. A larger detail is reduced to its short fields and marked with
 * `truncated: true`.
 */
export function detailText(detail: object | null | undefined, maxBytes: number): string | null {
  if (detail == null) return null
  const text = JSON.stringify(storableValue(parseExactJson(JSON.stringify(detail))))
  if (Buffer.byteLength(text) <= maxBytes) return text
  const reduced: Record<string, unknown> = { truncated: true }
  let remaining = maxBytes - 64
  for (const [key, value] of Object.entries(parseExactJson(text) as object)) {
    const shortened = typeof value === 'string' ? truncateBytes(value, 1024) : value
    const size = Buffer.byteLength(JSON.stringify({ [key]: shortened }))
    if (size > Math.min(remaining, 4096)) continue
    remaining -= size
    reduced[key] = shortened
  }
  return JSON.stringify(reduced)
}
