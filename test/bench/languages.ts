import { readFileSync } from 'node:fs'

/**
 * Labelled sets in eight languages: passages of the help pages of an invented shop, each with questions that it answers.
 * Written for these sets, in plain words, with inflected forms and some spelling without accents.
 */
export const LANGUAGES = ['english', 'german', 'french', 'chinese', 'japanese', 'korean', 'arabic', 'thai'] as const
export type Language = (typeof LANGUAGES)[number]

/** Languages with words that the built-in embedder separates. */
export const SPACED: readonly Language[] = ['english', 'german', 'french', 'arabic']

/** Language of PostgreSQL for a set; null if it has none. */
export const searchLanguageOf = (language: Language): string | null =>
  ['english', 'german', 'french', 'arabic'].includes(language) ? language : null

export type LabelledSet = { passages: string[]; questions: { query: string; passage: number }[] }

/** Reads a set: a line per passage, followed by the lines of its questions, which begin with `? `. */
export function labelledSet(language: Language): LabelledSet {
  const set: LabelledSet = { passages: [], questions: [] }
  for (const line of readFileSync(new URL(`languages/${language}.txt`, import.meta.url), 'utf8')
    .trim()
    .split('\n')) {
    if (line.startsWith('? ')) set.questions.push({ query: line.slice(2), passage: set.passages.length - 1 })
    else set.passages.push(line)
  }
  return set
}

type Search = (query: string) => Promise<{ content: string; lexical: number | null }[]>

/** Recall at ten of the whole search and of words alone, over the questions of a set. */
export async function recallOfSet({ passages, questions }: LabelledSet, search: Search) {
  let whole = 0
  let words = 0
  const missed: string[] = []
  for (const { query, passage } of questions) {
    const results = await search(query)
    const isFound = results.slice(0, 10).some(({ content }) => content === passages[passage])
    const hit = results.find(({ content }) => content === passages[passage])
    const isFoundByWords = hit?.lexical != null && hit.lexical <= 10
    if (isFound) whole += 1
    if (isFoundByWords) words += 1
    else missed.push(query)
  }
  return { whole: whole / questions.length, words: words / questions.length, missed }
}
