import { isScalar, Lexer, parseDocument, visit } from 'yaml'
import type { Problem } from '../../core/api/errors.ts'
import { storabilityProblem } from '../../core/api/validate.ts'

/** Templates as texts: YAML 1.2, of which JSON is a part. What could cost more than its length is refused before it is parsed. */

/** Bytes of a template. */
export const MAX_BYTES = 1_048_576
const MAX_ALIASES = 100
const MAX_DEPTH = 64
/** Tokens of a YAML text: 3 microseconds each. */
const MAX_TOKENS = 100_000

type Parsed = { value: unknown } | { problem: Problem }

const refused = (code: string, message: string, path = ''): Parsed => ({ problem: { code, path, message } })

/**
 * Reads a template.
 * @param given an object as the body brought it, or a text
 */
export function parseTemplate(given: unknown): Parsed {
  if (typeof given !== 'string') {
    const wrong = storabilityProblem(given)
    if (wrong) return { problem: wrong }
    if (Buffer.byteLength(JSON.stringify(given ?? null)) > MAX_BYTES) return tooLarge
    return { value: given }
  }
  if (Buffer.byteLength(given) > MAX_BYTES) return tooLarge
  const plain = jsonOf(given)
  if (plain !== undefined) {
    const wrong = storabilityProblem(plain)
    return wrong ? { problem: wrong } : { value: plain }
  }
  const costly = costOf(given)
  if (costly) return costly
  // Unique keys are checked below: the library compares each with all.
  const document = parseDocument(given, { version: '1.2', schema: 'core', uniqueKeys: false, merge: false })
  const [error] = document.errors
  if (error) {
    if (error.code === 'MULTIPLE_DOCS') return refused('INVALID_YAML', 'holds several documents')
    const [place] = error.linePos ?? []
    const where = place ? `line ${place.line}, column ${place.col}: ` : ''
    return refused('INVALID_YAML', `${where}${error.message.split(' at line ')[0]}`)
  }
  const twice = keyTwice(document)
  if (twice !== null) return refused('INVALID_YAML', `has the key ${twice} twice in one map`)
  try {
    const value: unknown = document.toJS({ maxAliasCount: MAX_ALIASES })
    const wrong = storabilityProblem(value)
    if (wrong) return { problem: wrong }
    // Aliases may make much of little.
    return Buffer.byteLength(JSON.stringify(value ?? null)) > MAX_BYTES ? tooLarge : { value }
  } catch (error) {
    if (!(error instanceof ReferenceError)) throw error
    return refused('INVALID_YAML', 'has more aliases than a template may use')
  }
}

const tooLarge = refused('TOO_LARGE', `is larger than ${MAX_BYTES} bytes`)

/** A text that is JSON of an object; undefined for any other. */
function jsonOf(text: string): unknown {
  if (!text.trimStart().startsWith('{')) return undefined
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** A key that a map has twice; null without one. */
function keyTwice(document: ReturnType<typeof parseDocument>): string | null {
  let twice: string | null = null
  visit(document, {
    Map(_, { items }) {
      const seen = new Set<unknown>()
      for (const { key } of items) {
        const name = isScalar(key) ? key.value : key
        if (seen.has(name)) {
          twice = String(name).slice(0, 200)
          return visit.BREAK
        }
        seen.add(name)
      }
    },
  })
  return twice
}

/** Why a text costs more to read than a template may, told by its tokens alone: what builds the tree recurses. */
function costOf(text: string): Parsed | null {
  /** Columns at which the blocks around a token began. */
  const blocks: number[] = []
  let brackets = 0
  let column = 0
  let tokens = 0
  let anchors = 0
  for (const token of new Lexer().lex(text)) {
    if (++tokens > MAX_TOKENS) return refused('TOO_LARGE', `has more than ${MAX_TOKENS} tokens; send it as JSON`)
    if (token[0] === '&' || token[0] === '*') anchors++
    if (anchors > MAX_ALIASES) return refused('INVALID_YAML', `has more than ${MAX_ALIASES} anchors and aliases`)
    if (token === '[' || token === '{') brackets++
    else if (token === ']' || token === '}') brackets = Math.max(0, brackets - 1)
    else if (brackets === 0 && (token === '-' || token === '?' || token === ':')) {
      while (blocks.length > 0 && (blocks.at(-1) as number) >= column) blocks.pop()
      blocks.push(column)
    }
    if (blocks.length + brackets > MAX_DEPTH) return refused('TOO_DEEP', `is nested deeper than ${MAX_DEPTH} levels`)
    const lines = token.split('\n')
    column = lines.length > 1 ? (lines.at(-1) as string).length : column + token.length
  }
  return null
}
