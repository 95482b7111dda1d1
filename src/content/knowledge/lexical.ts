import { sendWithCommit } from '../../core/db/commit-piggyback.ts'
import { inTransaction } from '../../core/db/pool.ts'
import { setForTransaction } from '../../core/db/settings.ts'
import type { Services } from '../../core/process/services.ts'
import type { SourceSelection } from './sources.ts'
import { type Hit, matchAnyWord, matchEveryWord, type Word } from './store.ts'

/** Maximum number of words that are searched individually if few rows contain all words. */
const MAX_WORDS = 8
/**
 * Words are searched individually, rarest first, up to this total share of the sampled rows: a word in half of all rows
 * is not selective and expensive.
 */
const MAX_SHARE = 0.1
/**
 * Minimum share of the best row's weight. Rows below it, which match one common word, would promote poor vector
 * matches. With this limit the fused order beats both channels on the labelled search texts.
 */
const MIN_WEIGHT = 0.4

/**
 * Minus signs used as punctuation: a single dash, or several in a row. PostgreSQL would exclude the word after the
 * first and refuse a query with 32 of the second, with any characters of the brackets in between.
 */
const DASHES = /(?<!\S)-+(?!\S)|-(?:[\s!&|()<]*-){2,}/g

/**
 * Searches one source by words, best rows first. Rows with all words come first: those with the exact phrase, then by
 * proximity of the words. If there are fewer than `minHits`, rows with some of the rarest words follow, unless the
 * query has quotes or exclusions, which request exact matches.
 * @param options.depth maximum number of rows
 * @throws the database error if the text search configuration is missing, or after KNOWLEDGE_QUERY_TIMEOUT_MS
 */
export function searchWords(
  { config, pool }: Services,
  selection: SourceSelection,
  text: string,
  options: { minHits: number; depth: number },
): Promise<readonly Hit[]> {
  const { minHits, depth } = options
  const query = text.replaceAll(DASHES, ' ')
  const isExact = /"|(^|\s)-/.test(query)
  return inTransaction(pool, async db => {
    await setForTransaction(db, {
      statement_timeout: String(config.KNOWLEDGE_QUERY_TIMEOUT_MS),
      jit: 'off',
      plan_cache_mode: 'force_custom_plan',
    })
    const textSearch = config.KNOWLEDGE_TEXT_SEARCH_CONFIG
    const { hits, words } = await matchEveryWord(db, selection, {
      textSearch,
      query,
      limit: depth,
      minHits: isExact ? 0 : minHits,
    })
    if (!words) return hits
    const partial = await sendWithCommit(() =>
      matchAnyWord(db, selection, { words: selectRarest(words), limit: depth }),
    )
    const existing = new Set(hits.map(hit => hit.ref_id))
    const strong = partial.filter(hit => hit.rank >= MIN_WEIGHT * partial[0].rank && !existing.has(hit.ref_id))
    return [...hits, ...strong].slice(0, depth)
  })
}

function selectRarest(words: readonly Word[]): string[] {
  const sorted = [...words].sort((left, right) => left.share - right.share)
  let sum = 0
  const selective = sorted.filter(({ share }) => {
    sum += share
    return sum <= MAX_SHARE
  })
  return (selective.length > 0 ? selective : sorted.slice(0, 1)).slice(0, MAX_WORDS).map(({ word }) => word)
}
