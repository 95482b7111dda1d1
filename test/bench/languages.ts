import { readFileSync } from 'node:fs'
import type { Client } from '../support/app.ts'

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

/** Passages with questions, and near passages on their topics with other facts, three for each. */
export type LabelledSet = {
  passages: string[]
  distractors: string[]
  questions: { query: string; passage: number }[]
}

const linesOf = (file: string): string[] =>
  readFileSync(new URL(`languages/${file}.txt`, import.meta.url), 'utf8')
    .trim()
    .split('\n')

/** Reads a set: a line per passage, followed by the lines of its questions, which begin with `? `. */
export function labelledSet(language: Language): LabelledSet {
  const set: LabelledSet = { passages: [], distractors: linesOf(`${language}-distractors`), questions: [] }
  for (const line of linesOf(language)) {
    if (line.startsWith('? ')) set.questions.push({ query: line.slice(2), passage: set.passages.length - 1 })
    else set.passages.push(line)
  }
  return set
}

const K = 10

/** Results of a question: contents of the whole search, best first, and of words alone. */
export type SetSearch = (query: string) => Promise<{ whole: string[]; words: string[] }>

/** Searches with a key; a long answer shows by its ranks which passages words found. */
export const setSearch =
  (key: Client): SetSearch =>
  async query => {
    const ask = async (limit: number): Promise<any[]> =>
      (await key.post('/knowledge/search', { query, limit })).body.results
    const [first, all] = [await ask(K), await ask(100)]
    const byWords = all.filter(({ signals }) => signals.lexical != null)
    byWords.sort((left, right) => left.signals.lexical - right.signals.lexical)
    return { whole: first.map(({ content }) => content), words: byWords.map(({ content }) => content) }
  }

/** Recall and mean reciprocal rank at ten over the questions of a set, and the questions that were missed. */
export async function qualityOfSet({ passages, questions }: LabelledSet, search: SetSearch) {
  const sums = { whole: { recall: 0, reciprocal: 0 }, words: { recall: 0, reciprocal: 0 } }
  const missed = { whole: [] as string[], words: [] as string[] }
  for (const { query, passage } of questions) {
    const found = await search(query)
    for (const channel of ['whole', 'words'] as const) {
      const rank = found[channel].slice(0, K).indexOf(passages[passage]) + 1
      if (rank === 0) missed[channel].push(query)
      else {
        sums[channel].recall += 1 / questions.length
        sums[channel].reciprocal += 1 / rank / questions.length
      }
    }
  }
  return { ...sums, missed }
}

/** Writes the passages of a set as documents, eight at a time. */
export async function writeSet(set: LabelledSet, write: (content: string) => Promise<unknown>): Promise<void> {
  const contents = [...set.passages, ...set.distractors]
  const next = async (): Promise<void> => {
    for (let content = contents.shift(); content !== undefined; content = contents.shift()) await write(content)
  }
  await Promise.all(Array.from({ length: 8 }, next))
}
