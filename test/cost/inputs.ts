/** Generators of worst inputs; each returns one of about n characters or items. */

/** Copies a text into one piece: a concatenated text is copied when it is read for the first time. */
export const flat = (text: string): string => Buffer.from(text).toString()

/** Repeats a part up to n characters. */
export const repeated =
  (part: string, { before = '', after = '' } = {}) =>
  (n: number): string =>
    flat(before + part.repeat(Math.max(0, Math.floor((n - before.length - after.length) / part.length))) + after)

/** Opens a bracket half of n times and closes it as often. */
export const nested =
  (open: string, close: string, { inner = '' } = {}) =>
  (n: number): string => {
    const depth = Math.max(0, Math.floor((n - inner.length) / (open.length + close.length)))
    return flat(open.repeat(depth) + inner + close.repeat(depth))
  }

/** Generators that repeat each token of a grammar, each pair of tokens, and each token before an end that never matches. */
export function repetitions(tokens: readonly string[], end = '\u0000'): Record<string, (n: number) => string> {
  const parts = [...tokens, ...tokens.flatMap(first => tokens.filter(t => t !== first).map(second => first + second))]
  return Object.fromEntries(
    parts.flatMap(part => [
      [JSON.stringify(part), repeated(part)],
      [`${JSON.stringify(part)} without an end`, repeated(part, { after: end })],
    ]),
  )
}

/** Builds a value of n items by index. */
export const items =
  <Item>(item: (at: number) => Item) =>
  (n: number): Item[] =>
    Array.from({ length: n }, (_, at) => item(at))

/** Builds an object of n keys. */
export const keys =
  (value: (at: number) => unknown, key: (at: number) => string = at => `key_${at}`) =>
  (n: number): Record<string, unknown> =>
    Object.fromEntries(Array.from({ length: n }, (_, at) => [key(at), value(at)]))

/** Nests a value n deep. */
export const deep =
  (wrap: (inner: unknown) => unknown, inner: unknown = null) =>
  (n: number): unknown => {
    let value = inner
    for (let at = 0; at < n; at++) value = wrap(value)
    return value
  }
