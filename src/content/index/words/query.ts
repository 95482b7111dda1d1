import { compoundAt, foldWord, normalizeText, scriptConfig, type Word, wordsOf } from './fold.ts'
import { configOf, type SearchLanguages } from './languages.ts'

/**
 * A query as `search_query` reads it: forms separated by form feeds, of which one must match; a form consists of lines
 * that must all match. The first character of a line is `q` for the syntax of to_tsquery, `w` for websearch_to_tsquery
 * and `p` for a phrase; a configuration and a tab follow. `!` requires that the configuration exists.
 */
export type WordQuery = {
  /** Rows with all words. */
  all: string
  /** Rows with the words as written, in order. */
  phrase: string
  /** Each word, to find rows with some of them. */
  words: string[]
  /** Whether most words are pairs of letters, of which a text has more than words. */
  hasPairs: boolean
  /** Whether the query has quotes or exclusions, which require exact matches. */
  isExact: boolean
}

/**
 * Minus signs used as punctuation: a single dash, or several in a row. The word after the first would be excluded, and
 * PostgreSQL refuses a query with 32 of the second, with any characters of the brackets in between.
 */
const DASHES = /(?<!\S)-+(?!\S)|-(?:[\s!&|()<]*-){2,}/g
const TERM = /(?<minus>-?)"(?<quoted>[^"]*)(?:"|$)|(?<word>[^\s"]+)/g

/** Maximum number of words of a query. */
const MAX_OPERANDS = 512
/** Maximum number of words of a query among which the rarest are determined. */
const MAX_WORDS = 64

/** A word at a position relative to the start of its term. */
type Operand = { text: string; at: number; isPrefix: boolean; isPair: boolean }
type Term = {
  operands: Operand[]
  /** Positions that the words take. */
  length: number
  /** The words written as one, if they are a compound. */
  compound: string | null
  isExcluded: boolean
  /** Whether the term follows `or`. */
  isAlternative: boolean
}

/** Parses the query of a search into its forms in the given languages. */
export function parseQuery(text: string, { languages, earlier }: SearchLanguages, required: string): WordQuery {
  const query = normalizeText(text).replaceAll(DASHES, ' ')
  const terms = parseTerms(query)
  const operands = terms.filter(term => !term.isExcluded).flatMap(term => term.operands)
  const raw = text.replaceAll(DASHES, ' ').replace(/\s+/g, ' ').trim()
  const sign = (config: string) => (config === required ? `!${config}` : config)
  const forms = (
    lines: (config: (script: string | null) => string) => string[],
    command: string,
    earlierText: string,
  ) =>
    [
      ...new Set([
        ...languages.map(language => lines(script => sign(configOf(language, script))).join('\n')),
        ...earlier.map(config => `${command}${config}\t${earlierText}`),
      ]),
    ]
      .filter(form => form !== '')
      .join('\f')
  const words = new Map(operands.map(operand => [`${operand.text}${operand.isPrefix}`, operand]))
  const compounds = terms.flatMap(({ compound, isExcluded }) => (compound && !isExcluded ? [compound] : []))
  for (const compound of compounds)
    words.set(`${compound}false`, { text: compound, at: 0, isPrefix: false, isPair: false })
  // Rows of earlier releases have compounds in other parts.
  const rawWords = earlier.length === 0 ? [] : raw.split(' ').filter(token => !words.has(`${token.toLowerCase()}false`))
  return {
    all: forms(config => allLines(terms, config), 'w', raw),
    phrase: forms(config => phraseLines(terms, config), 'p', raw),
    words: [
      ...[...words.values()].map(operand =>
        forms(config => [`q${config(scriptConfig(operand.text))}\t${anyForm(operand)}`], 'p', operand.text),
      ),
      ...rawWords.map(token => forms(() => [], 'p', token)),
    ].slice(0, MAX_WORDS),
    hasPairs: 2 * operands.filter(({ isPair }) => isPair).length > operands.length,
    isExact: /"|(^|\s)-/.test(query),
  }
}

function parseTerms(query: string): Term[] {
  const terms: Term[] = []
  let isAlternative = false
  let count = 0
  for (const { groups } of query.matchAll(TERM)) {
    const { minus, quoted, word } = groups as Record<string, string | undefined>
    if (word?.toLowerCase() === 'or' && terms.length > 0) {
      isAlternative = true
      continue
    }
    const isExcluded = minus === '-' || (word?.startsWith('-') ?? false)
    const words = wordsOf(quoted ?? (word as string))
    const { operands, length } = operandsOf(words)
    if (operands.length === 0) continue
    const compound = quoted === undefined ? compoundAt(words, 0) : null
    const isWhole = compound !== null && compound.length === words.length
    terms.push({ operands, length, compound: isWhole ? compound.text : null, isExcluded, isAlternative })
    isAlternative = false
    count += operands.length
    if (count > MAX_OPERANDS) break
  }
  return terms
}

function operandsOf(words: readonly Word[]): { operands: Operand[]; length: number } {
  const operands: Operand[] = []
  let at = 0
  for (const { text, letters } of words) {
    if (!letters) {
      operands.push({ text, at: at++, isPrefix: false, isPair: false })
    } else if (letters.length === 1) {
      operands.push({ text: letters[0], at: at++, isPrefix: true, isPair: false })
    } else {
      for (let index = 1; index < letters.length; index++)
        operands.push({ text: letters[index - 1] + letters[index], at: at + index - 1, isPrefix: false, isPair: true })
      at += letters.length
    }
  }
  return { operands, length: at }
}

const exactForm = ({ text, isPrefix }: Operand, weight = ''): string => {
  const suffix = `${isPrefix ? '*' : ''}${weight}`
  return `'${text}'${suffix && `:${suffix}`}`
}

/** The word as written or without accents. */
function anyForm(operand: Operand): string {
  const folded = foldWord(operand.text)
  return folded === null ? exactForm(operand) : `(${exactForm(operand)} | '${folded}')`
}

/** Joins words by their distances. */
const inOrder = (operands: readonly Operand[], form: (operand: Operand) => string): string =>
  operands
    .map((operand, index) => (index === 0 ? '' : ` <${operand.at - operands[index - 1].at}> `) + form(operand))
    .join('')

function termText({ operands, compound, isExcluded }: Term): string {
  const words = inOrder(operands, anyForm)
  const text =
    compound === null ? words : `${words} | ${anyForm({ text: compound, at: 0, isPrefix: false, isPair: false })}`
  return `${isExcluded ? '!' : ''}(${text})`
}

const scriptOf = ({ operands }: Term): string | null => {
  for (const { text } of operands) {
    const script = scriptConfig(text)
    if (script) return script
  }
  return null
}

/** Lines for rows with all terms: one per configuration, or a single one if the query has alternatives. */
function allLines(terms: readonly Term[], config: (script: string | null) => string): string[] {
  if (terms.some(({ isAlternative }) => isAlternative)) {
    const groups: string[][] = []
    for (const term of terms) {
      const group = groups.at(-1)
      if (group && !term.isAlternative) group.push(termText(term))
      else groups.push([termText(term)])
    }
    const text = groups.map(group => `(${group.join(' & ')})`).join(' | ')
    return [`q${config(terms.map(scriptOf).find(script => script !== null) ?? null)}\t${text}`]
  }
  const byConfig = Map.groupBy(terms, term => config(scriptOf(term)))
  return [...byConfig].map(([name, group]) => `q${name}\t${group.map(termText).join(' & ')}`)
}

/** The line for rows with the words as written, in order; words in another form have another weight. */
function phraseLines(terms: readonly Term[], config: (script: string | null) => string): string[] {
  const operands: Operand[] = []
  let at = 0
  for (const term of terms) {
    if (term.isExcluded) continue
    operands.push(...term.operands.map(operand => ({ ...operand, at: at + operand.at })))
    at += term.length
  }
  if (operands.length === 0) return []
  const script = terms.map(scriptOf).find(name => name !== null) ?? null
  return [`q${config(script)}\t${inOrder(operands, operand => exactForm(operand, 'D'))}`]
}
