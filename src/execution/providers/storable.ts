/** A text without what the database cannot hold: NUL characters and halves of surrogate pairs become U+FFFD. */
export const storableText = (text: string): string => text.replaceAll('\0', '\u{fffd}').toWellFormed()

/** The same for every key and string of a JSON value, such as the arguments a model made up. */
export function storableValue(value: unknown): unknown {
  if (typeof value === 'string') return storableText(value)
  if (Array.isArray(value)) return value.map(storableValue)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [storableText(key), storableValue(item)]))
}
