import { sendWithCommit } from '../../core/db/commit-piggyback.ts'
import { inTransaction } from '../../core/db/pool.ts'
import { setForTransaction } from '../../core/db/settings.ts'
import type { Services } from '../../core/process/services.ts'
import type { SourceSelection } from './sources.ts'
import { type Hit, matchAnyWord, matchEveryWord, type Word } from './store.ts'

/** Words of a question that are looked for one by one when no row has all of them. */
const SOME_WORDS = 8
/**
 * Words are taken, the rarest first, for as long as they stand in so many of the sampled rows together: a word that half the
 * project holds says nothing and is found in half the project.
 */
const SHARE = 0.1
/**
 * Rows with less than this share of the best row's weight are left out: found by one word that says little, they would
 * lift a likeness that is no better. On the labelled questions the fused order then beats both channels.
 */
const WEAK = 0.4

/**
 * Minus signs that are punctuation: alone, as a dash or a rule is, or several in a row. PostgreSQL excludes the word after the
 * first kind and refuses a query with 32 of the second; between them it reads over what stands in the brackets.
 */
const DASHES = /(?<!\S)-+(?!\S)|-(?:[\s!&|()<]*-){2,}/g

/**
 * The lexical channel over one source, best rows first. Rows that hold all words of the query come
 * first, among them those that hold them in this order, then by how close the words are to each other. When they are fewer
 * than `wanted`, rows that hold some of the rarest words follow, unless the query quotes or excludes something: that is
 * how a caller says exactly what is wanted.
 * @param options.depth rows at most
 * @throws the database's error when the text search configuration is missing, or after KNOWLEDGE_QUERY_TIMEOUT_MS
 */
export function lexicalHits(
  { config, pool }: Services,
  selection: SourceSelection,
  asked: string,
  options: { wanted: number; depth: number },
): Promise<readonly Hit[]> {
  const { wanted, depth } = options
  const query = asked.replaceAll(DASHES, ' ')
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
      wanted: isExact ? 0 : wanted,
    })
    if (!words) return hits
    const more = await sendWithCommit(() => matchAnyWord(db, selection, { words: rarest(words), limit: depth }))
    const known = new Set(hits.map(hit => hit.ref_id))
    const strong = more.filter(hit => hit.rank >= WEAK * more[0].rank && !known.has(hit.ref_id))
    return [...hits, ...strong].slice(0, depth)
  })
}

function rarest(words: readonly Word[]): string[] {
  const sorted = [...words].sort((left, right) => left.share - right.share)
  let sum = 0
  const telling = sorted.filter(({ share }) => {
    sum += share
    return sum <= SHARE
  })
  return (telling.length > 0 ? telling : sorted.slice(0, 1)).slice(0, SOME_WORDS).map(({ word }) => word)
}
