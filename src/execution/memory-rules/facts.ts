import { z } from 'zod'
import { storableText, truncateChars } from '../../core/api/storable-text.ts'

/** What handlers say is to be remembered. */

/** Facts that one firing writes at most. */
export const MAX_FACTS = 20

/** Text that is searched for JSON, and beginnings of JSON in it that are tried. */
const MAX_TEXT = 256 * 1024
const MAX_TRIES = 100

const MAX_TAGS = 50

export const ExtractedFact = z.object({ content: z.string(), tags: z.record(z.string(), z.string()) })
export type ExtractedFact = z.output<typeof ExtractedFact>

/** The first array that a text holds as JSON: what the built-in extractor was asked for. */
export const extractedFacts = (text: string): ExtractedFact[] =>
  factsIn(jsonIn(text, Array.isArray)).map(({ content }) => ({ content, tags: {} }))

/** The first object with `facts`, or array, that a text holds as JSON: what an agent was asked for. */
export const factsOfText = (text: string): ExtractedFact[] => factsIn(jsonIn(text, value => listOf(value) !== null))

/** The same of the result of a tool, which may be a text. */
export const factsOfResult = (result: unknown): ExtractedFact[] =>
  typeof result === 'string' ? factsOfText(result) : factsIn(result)

function listOf(value: unknown): unknown[] | null {
  if (Array.isArray(value)) return value
  const facts = typeof value === 'object' && value !== null && 'facts' in value ? value.facts : null
  return Array.isArray(facts) ? facts : null
}

const factsIn = (value: unknown): ExtractedFact[] =>
  (listOf(value) ?? []).flatMap(entry => factOf(entry) ?? []).slice(0, MAX_FACTS)

/** Anything but a text or an object with one is dropped. */
function factOf(entry: unknown): ExtractedFact | null {
  const given = typeof entry === 'object' && entry !== null ? (entry as Record<string, unknown>) : { content: entry }
  if (typeof given.content !== 'string') return null
  const content = storableText(given.content).trim()
  return content === '' ? null : { content, tags: tagsOf(given.tags) }
}

function tagsOf(given: unknown): Record<string, string> {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) return {}
  const pairs = Object.entries(given).filter(
    (pair): pair is [string, string] =>
      typeof pair[1] === 'string' &&
      pair[0] !== '' &&
      pair[0].length <= 128 &&
      pair[1].length <= 256 &&
      !pair[0].startsWith('system.'),
  )
  return Object.fromEntries(pairs.slice(0, MAX_TAGS).map(([name, value]) => [storableText(name), storableText(value)]))
}

/** The first JSON array or object within a text that is wanted; null without one. */
function jsonIn(given: string, wanted: (value: unknown) => boolean): unknown {
  const text = truncateChars(given, MAX_TEXT)
  let tries = 0
  for (const { index } of text.matchAll(/[[{]/g)) {
    if (++tries > MAX_TRIES) return null
    const end = endOfJson(text, index)
    if (end === null) continue
    try {
      const value: unknown = JSON.parse(text.slice(index, end))
      if (wanted(value)) return value
    } catch {
      // Prose in brackets.
    }
  }
  return null
}

/** Where the brackets that open at a place are closed; null when they never are. */
function endOfJson(text: string, start: number): number | null {
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
