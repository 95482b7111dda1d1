/** Invisible characters and characters that change the text direction. */
const INVISIBLE = /[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+/g

/** Code points as they are shown, by character. */
const shown = new Map<string, string>()

function showCodePoint(character: string): string {
  const code = shown.get(character) ?? `[U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}]`
  shown.set(character, code)
  return code
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are matched to be replaced
const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g

/**
 * Makes text of a record safe to read: replaces broken Unicode and control characters, and shows invisible and
 * directional characters as their code points.
 */
export const toPrintable = (text: string): string =>
  text
    .toWellFormed()
    .replaceAll('\r\n', '\n')
    .replaceAll('\r', '\n')
    .replace(CONTROLS, '\ufffd')
    .replace(INVISIBLE, characters => Array.from(characters, showCodePoint).join(''))

/** Returns printable text with whitespace collapsed to one line. */
export const toSingleLine = (text: string): string => toPrintable(text).replace(/\s+/g, ' ').trim()

/** Returns indented, printable JSON. */
export const prettyJson = (value: unknown): string => toPrintable(JSON.stringify(value, null, 2))

/** Concatenates lists of text chunks with `between` between two lists. */
export function* interleave(lists: Iterable<Iterable<string>>, between: string): Generator<string> {
  let first = true
  for (const list of lists) {
    if (!first) yield between
    first = false
    yield* list
  }
}
