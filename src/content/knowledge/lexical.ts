import type { Services } from '#core/base/services.ts'
import { sendWithCommit } from '#core/db/commit-piggyback.ts'
import type { Reads } from '#core/db/replica.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { findSearchLanguages } from '../index/words/languages.ts'
import { parseQuery } from '../index/words/query.ts'
import type { SourceSelection } from './sources.ts'
import { type Hit, matchAnyWord, matchEveryWord, type Word } from './store.ts'

/** Maximum number of words that are searched individually if few rows contain all words. */
const MAX_WORDS = 8
/** The same for pairs of letters of scripts without spaces: a word consists of two to four. */
const MAX_PAIRS = 24
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
 * Searches one source by words, best rows first. Rows with all words come first: those with the exact phrase, then by
 * proximity of the words. If there are fewer than `minHits`, rows with some of the rarest words follow, unless the
 * query has quotes or exclusions, which request exact matches.
 * @param options.depth maximum number of rows
 * @throws the database error if the text search configuration is missing, or after KNOWLEDGE_QUERY_TIMEOUT_MS
 */
export async function searchWords(
  services: Services,
  reads: Reads,
  selection: SourceSelection,
  text: string,
  options: { minHits: number; depth: number },
): Promise<readonly Hit[]> {
  const { minHits, depth } = options
  const { config } = services
  const { projects } = selection
  const languages = await findSearchLanguages(services, projects?.length === 1 ? projects[0] : null)
  const query = parseQuery(text, languages, config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
  return reads.transaction(async db => {
    await setForTransaction(db, {
      statement_timeout: String(config.KNOWLEDGE_QUERY_TIMEOUT_MS),
      jit: 'off',
      plan_cache_mode: 'force_custom_plan',
    })
    const { hits, words } = await matchEveryWord(db, selection, {
      query,
      limit: depth,
      minHits: query.isExact ? 0 : minHits,
    })
    if (!words) return hits
    const partial = await sendWithCommit(() =>
      matchAnyWord(db, selection, { words: selectRarest(words, query.hasPairs ? MAX_PAIRS : MAX_WORDS), limit: depth }),
    )
    const existing = new Set(hits.map(hit => hit.ref_id))
    const strong = partial.filter(hit => hit.rank >= MIN_WEIGHT * partial[0].rank && !existing.has(hit.ref_id))
    return [...hits, ...strong].slice(0, depth)
  })
}

function selectRarest(words: readonly Word[], limit: number): string[] {
  const sorted = [...words].sort((left, right) => left.share - right.share)
  let sum = 0
  const selective = sorted.filter(({ share }) => {
    sum += share
    return sum <= MAX_SHARE
  })
  return (selective.length > 0 ? selective : sorted.slice(0, 1)).slice(0, limit).map(({ word }) => word)
}
