import { isScalar, Lexer, parseDocument, visit } from 'yaml'
import { storabilityProblem } from '#core/api/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { numberOf } from '#core/base/exact-json.ts'
import { runWithCpuLimit } from '#core/threads/cpu-limit.ts'

/** Parser of YAML 1.2, a task of threads (core/threads). Texts whose cost exceeds their length are refused before parsing. */

/** Maximum bytes of a template. */
export const MAX_BYTES = 1_048_576
const MAX_ALIASES = 100
const MAX_DEPTH = 64
/** Maximum tokens of a YAML text; each costs 3 microseconds. */
const MAX_TOKENS = 100_000
/** Maximum sum of the rests of lines after each token: the lexer searches the end of the line again for some of them. */
const MAX_LINE_SCANS = 20_000_000
/** Processor time limit of a text in a thread, far above what these limits permit. */
const MAX_MS = 2000

/** A value as JSON, which a thread returns faster than the value. */
export type Parsed = { json: string } | { problem: Problem }

export const refused = (code: string, message: string): { problem: Problem } => ({
  problem: { code, path: '', message },
})

export const tooLarge = refused('TOO_LARGE', `must be at most ${MAX_BYTES} bytes`)

/** Parses a text in a thread. */
export const run = (source: string): Parsed => runWithCpuLimit(MAX_MS, () => parseYaml(source))

export function parseYaml(source: string): Parsed {
  const excess = excessProblem(source)
  if (excess) return excess
  // Duplicate keys are found below in linear time; the library compares each key with all others.
  const document = parseDocument(source, { version: '1.2', schema: 'core', uniqueKeys: false, merge: false })
  const [error] = document.errors
  if (error) {
    if (error.code === 'MULTIPLE_DOCS') return refused('INVALID_YAML', 'must be a single YAML document')
    const [position] = error.linePos ?? []
    const prefix = position ? `line ${position.line}, column ${position.col}: ` : ''
    return refused('INVALID_YAML', `${prefix}${error.message.split(' at line ')[0]}`)
  }
  const duplicate = findDuplicateKey(document)
  if (duplicate !== null) return refused('INVALID_YAML', `has the duplicate key ${duplicate}`)
  keepDigits(document)
  try {
    // Aliases may expand a small text.
    const value: unknown = document.toJS({ maxAliasCount: MAX_ALIASES })
    if (exceedsSize(value)) return tooLarge
    const problem = storabilityProblem(value)
    return problem ? { problem } : { json: JSON.stringify(value ?? null) }
  } catch (error) {
    if (!(error instanceof ReferenceError)) throw error
    return refused('INVALID_YAML', `expands more than ${MAX_ALIASES} aliases`)
  }
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/

/** Gives numbers the digits of the text. */
function keepDigits(document: ReturnType<typeof parseDocument>): void {
  visit(document, {
    Scalar(key, node) {
      if (key !== 'key' && typeof node.value === 'number' && node.source && JSON_NUMBER.test(node.source))
        node.value = numberOf(node.source)
    },
  })
}

/** Whether a value has more characters and values than bytes are allowed, each use of an alias included. */
function exceedsSize(value: unknown): boolean {
  let remaining = MAX_BYTES
  // Deeper values are refused as such.
  const walk = (node: unknown, levels: number): boolean => {
    remaining -= typeof node === 'string' ? node.length : 1
    if (typeof node !== 'object' || node === null || levels === 0) return remaining < 0
    for (const [key, item] of Object.entries(node)) {
      if (!Array.isArray(node)) remaining -= key.length
      if (walk(item, levels - 1)) return true
    }
    return remaining < 0
  }
  return walk(value, 2 * MAX_DEPTH)
}

/** Returns a duplicate key of a map; null if there is none. */
function findDuplicateKey(document: ReturnType<typeof parseDocument>): string | null {
  let duplicate: string | null = null
  visit(document, {
    Map(_, { items }) {
      const seen = new Set<unknown>()
      for (const { key } of items) {
        const name = isScalar(key) ? key.value : key
        if (seen.has(name)) {
          duplicate = String(name).slice(0, 200)
          return visit.BREAK
        }
        seen.add(name)
      }
    },
  })
  return duplicate
}

function endOfLine(text: string, from: number): number {
  const end = text.indexOf('\n', from)
  return end === -1 ? text.length : end
}

/** Returns the problem of a text that is too expensive to parse. Counts tokens only, because the parser recurses. */
function excessProblem(text: string): Parsed | null {
  /** Start columns of the blocks around the token. */
  const blocks: number[] = []
  let brackets = 0
  let column = 0
  let tokens = 0
  let anchors = 0
  let position = 0
  let lineEnd = -1
  let scans = 0
  for (const token of new Lexer().lex(text)) {
    position += token.length
    if (lineEnd < position) lineEnd = endOfLine(text, position)
    scans += lineEnd - position
    if (scans > MAX_LINE_SCANS) return refused('TOO_LARGE', 'must have shorter lines; send it as JSON')
    if (++tokens > MAX_TOKENS)
      return refused('TOO_LARGE', `must have at most ${MAX_TOKENS} YAML tokens; send it as JSON`)
    if (token[0] === '&' || token[0] === '*') anchors++
    if (anchors > MAX_ALIASES) return refused('INVALID_YAML', `must have at most ${MAX_ALIASES} anchors and aliases`)
    if (token === '[' || token === '{') brackets++
    else if (token === ']' || token === '}') brackets = Math.max(0, brackets - 1)
    else if (brackets === 0 && (token === '-' || token === '?' || token === ':')) {
      while (blocks.length > 0 && (blocks.at(-1) as number) >= column) blocks.pop()
      blocks.push(column)
    }
    if (blocks.length + brackets > MAX_DEPTH)
      return refused('TOO_DEEP', `must be nested at most ${MAX_DEPTH} levels deep`)
    const lines = token.split('\n')
    column = lines.length > 1 ? (lines.at(-1) as string).length : column + token.length
  }
  return null
}
