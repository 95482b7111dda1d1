/** Characters that turn the direction of text around, or hide in it. */
const INVISIBLE = /[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is replaced
const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g

/**
 * Text of a record so that what is read is what it holds: broken Unicode and control characters are replaced, and
 * characters that hide or turn others around are named.
 */
export const toPrintable = (text: string): string =>
  text
    .toWellFormed()
    .replaceAll('\r\n', '\n')
    .replaceAll('\r', '\n')
    .replace(CONTROLS, '\ufffd')
    .replace(INVISIBLE, found => `[U+${found.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}]`)

/** The same in one line. */
export const inLine = (text: string): string => toPrintable(text).replace(/\s+/g, ' ').trim()

/** JSON for people. */
export const prettyJson = (value: unknown): string => toPrintable(JSON.stringify(value, null, 2))

/** Lists of pieces of text as one, with something between two of them. */
export function* interleave(lists: Iterable<Iterable<string>>, between: string): Generator<string> {
  let first = true
  for (const list of lists) {
    if (!first) yield between
    first = false
    yield* list
  }
}
