/** A pattern with `*` (any sequence) and `?` (one character); `shortest` is the minimum length of a match. */
export type Glob = { readonly pattern: string; readonly shortest: number }

/** Compiles a glob. Repeated `*` are merged, which bounds matching by pattern length times value length. */
export function compileGlob(source: string): Glob {
  let pattern = ''
  let shortest = 0
  for (let i = 0; i < source.length; i++) {
    const char = source[i]
    if (char === '*' && pattern.endsWith('*')) continue
    pattern += char
    if (char !== '*') shortest++
  }
  return { pattern, shortest }
}

const STAR = 42
const QUESTION = 63

/** Returns the length in code units of the character at `at`: `?` is one code point, as in PostgreSQL. */
function width(value: string, at: number): number {
  return value.codePointAt(at)! > 0xffff ? 2 : 1
}

/** Whether a glob matches a whole string. Backtracks only to the latest `*`, so that no input is exponential. */
export function globMatches(glob: Glob, value: string): boolean {
  const { pattern } = glob
  if (value.length < glob.shortest) return false
  let at = 0
  let p = 0
  let star = -1
  let resume = 0
  while (at < value.length) {
    const expected = p < pattern.length ? pattern.charCodeAt(p) : -1
    if (expected === STAR) {
      star = p++
      resume = at
    } else if (expected === QUESTION) {
      at += width(value, at)
      p++
    } else if (expected === value.charCodeAt(at)) {
      at++
      p++
    } else if (star >= 0) {
      p = star + 1
      resume += width(value, resume)
      at = resume
    } else return false
  }
  while (p < pattern.length && pattern.charCodeAt(p) === STAR) p++
  return p === pattern.length
}

/** Returns the equivalent `like` pattern, with the default escape character. */
export function globToLike(glob: Glob): string {
  let like = ''
  for (const char of glob.pattern) {
    if (char === '*') like += '%'
    else if (char === '?') like += '_'
    else if (char === '%' || char === '_' || char === '\\') like += `\\${char}`
    else like += char
  }
  return like
}
