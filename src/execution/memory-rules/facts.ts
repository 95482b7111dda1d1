import { z } from 'zod'
import { isObject } from '#core/base/exact-json.ts'
import { storableText, truncateChars } from '#core/base/storable-text.ts'

/** Parsing of the facts that handlers return. */

/** Maximum number of facts written by one firing. */
export const MAX_FACTS = 20

/** Maximum number of text characters searched for JSON, and of positions tried. */
const MAX_TEXT_CHARS = 256 * 1024
const MAX_POSITIONS = 100
/** Maximum number of characters scanned for ends of brackets, for all positions together. */
const MAX_SCANNED = 4 * MAX_TEXT_CHARS

const MAX_TAGS = 50

export const ExtractedFact = z.object({ content: z.string(), tags: z.record(z.string(), z.string()) })
export type ExtractedFact = z.output<typeof ExtractedFact>

/** Message of a failure by an answer without a list of facts. */
export const NO_FACTS = 'The answer has no list of facts'

/** Returns the facts in the first JSON array of a text, as the built-in extractor formats them; null without an array. */
export const extractedFacts = (text: string): ExtractedFact[] | null =>
  parseFacts(findJson(text, Array.isArray))?.map(({ content }) => ({ content, tags: {} })) ?? null

/** Returns the facts in the first JSON object with `facts`, or array, of a text, as agents format them; null without one. */
export const factsOfText = (text: string): ExtractedFact[] | null =>
  parseFacts(findJson(text, value => factList(value) !== null))

/** Returns the facts in the result of a tool, which may be a text; none for an empty one, null for one of another form. */
export const factsOfResult = (result: unknown): ExtractedFact[] | null => {
  if (result == null || (typeof result === 'string' && result.trim() === '')) return []
  return typeof result === 'string' ? factsOfText(result) : parseFacts(result)
}

function factList(value: unknown): unknown[] | null {
  if (Array.isArray(value)) return value
  const facts = typeof value === 'object' && value !== null && 'facts' in value ? value.facts : null
  return Array.isArray(facts) ? facts : null
}

const parseFacts = (value: unknown): ExtractedFact[] | null =>
  factList(value)
    ?.flatMap(entry => parseFact(entry) ?? [])
    .slice(0, MAX_FACTS) ?? null

/** Returns a fact from a text or an object with a text; null for anything else. */
function parseFact(entry: unknown): ExtractedFact | null {
  const value = typeof entry === 'object' && entry !== null ? (entry as Record<string, unknown>) : { content: entry }
  if (typeof value.content !== 'string') return null
  const content = storableText(value.content).trim()
  return content === '' ? null : { content, tags: parseTags(value.tags) }
}

function parseTags(value: unknown): Record<string, string> {
  if (!isObject(value)) return {}
  const pairs = Object.entries(value).filter(
    (pair): pair is [string, string] =>
      typeof pair[1] === 'string' &&
      pair[0] !== '' &&
      pair[0].length <= 128 &&
      pair[1].length <= 256 &&
      !pair[0].startsWith('system.'),
  )
  return Object.fromEntries(pairs.slice(0, MAX_TAGS).map(([name, value]) => [storableText(name), storableText(value)]))
}

/** Returns the first JSON array or object in a text that `accepts` allows, or null. */
function findJson(value: string, accepts: (value: unknown) => boolean): unknown {
  const text = truncateChars(value, MAX_TEXT_CHARS)
  let positions = 0
  let scanned = 0
  for (const { index } of text.matchAll(/[[{]/g)) {
    if (++positions > MAX_POSITIONS) return null
    const end = findJsonEnd(text, index)
    scanned += (end ?? text.length) - index
    if (scanned > MAX_SCANNED) return null
    if (end === null) continue
    try {
      const value: unknown = JSON.parse(text.slice(index, end))
      if (accepts(value)) return value
    } catch {
      // Brackets in prose.
    }
  }
  return null
}

/** Returns the end of the brackets that open at `start`, or null if they are not closed. */
function findJsonEnd(text: string, start: number): number | null {
  let depth = 0
  let quoted = false
  for (let at = start; at < text.length; at++) {
    const char = text[at]
    if (quoted) {
      if (char === '\\') at++
      else if (char === '"') quoted = false
    } else if (char === '"') quoted = true
    else if (char === '[' || char === '{') depth++
    else if ((char === ']' || char === '}') && --depth === 0) return at + 1
  }
  return null
}
