import { storableText, storableValue, truncateBytes } from '../../core/api/storable-text.ts'

const LINE_CHARS = 500
/** Ids of the platform have 34 characters at most. */
const ID_CHARS = 64

/** One line of bounded length that the database can hold. */
export const singleLine = (text: string): string =>
  [...storableText(text.replaceAll(/[\s\p{Cc}]+/gu, ' ').trim())].slice(0, LINE_CHARS).join('')

/** A plain id that the database can hold; null for none. */
export const storableId = (id: string | null | undefined): string | null =>
  id == null ? null : storableText(id).slice(0, ID_CHARS)

/**
 * The JSON text of a detail, at most `maxBytes` long: of a larger one what is short, with `truncated: true`.
 * @returns null for none
 */
export function detailText(detail: object | null | undefined, maxBytes: number): string | null {
  if (detail == null) return null
  const text = JSON.stringify(storableValue(JSON.parse(JSON.stringify(detail))))
  if (Buffer.byteLength(text) <= maxBytes) return text
  const cut: Record<string, unknown> = { truncated: true }
  let left = maxBytes - 64
  for (const [key, value] of Object.entries(JSON.parse(text) as object)) {
    const short = typeof value === 'string' ? truncateBytes(value, 1024) : value
    const size = Buffer.byteLength(JSON.stringify({ [key]: short }))
    if (size > Math.min(left, 4096)) continue
    left -= size
    cut[key] = short
  }
  return JSON.stringify(cut)
}
