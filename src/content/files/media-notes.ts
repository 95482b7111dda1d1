import { essenceOf } from './media-type.ts'
import type { FileRow } from './model.ts'

/** Longest name in a note, in characters. */
const MAX_NAME = 120

/** Control, format and bidirectional characters, which could hide or reorder text. */
const HIDDEN = /[\p{Cc}\p{Cf}\u2028\u2029]/gu

/** Returns a filename without hidden characters and separators of paths, shortened to 120 characters. */
export function cleanName(filename: string): string {
  const name = filename.replaceAll(HIDDEN, '').replaceAll(/[/\\]/g, '_').trim()
  return [...name].slice(0, MAX_NAME).join('')
}

/**
 * Returns the note that a model gets in place of a file: `[file: "cat.png", image/png, 2048 bytes]`. Names and
 * descriptions are written by end users, so they are JSON strings.
 */
export function fileNote(
  { filename, content_type, size }: Pick<FileRow, 'filename' | 'content_type' | 'size'>,
  alt: string | null,
): string {
  const facts = [
    JSON.stringify(cleanName(filename)),
    essenceOf(content_type ?? 'application/octet-stream'),
    `${size ?? 0} bytes`,
    ...(alt === null ? [] : [JSON.stringify(alt)]),
  ]
  return `[file: ${facts.join(', ')}]`
}

/** Note for a file that no longer exists. */
export const GONE_NOTE = '[file: deleted]'

/** Names that cannot be read as anything but a name. */
const PLAIN = /^[\p{L}\p{N}][\p{L}\p{N} ._()+-]*$/u

/** Returns the place of a file in the text form of a message: `[image: cat.png]`, or with the name as a JSON string. */
export function filePlaceholder(label: 'image' | 'file', name: string): string {
  const clean = cleanName(name)
  return `[${label}: ${PLAIN.test(clean) ? clean : JSON.stringify(clean)}]`
}
