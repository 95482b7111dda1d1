import { z } from 'zod'
import { allOf, equalsAny, type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import type { WordQuery } from '../index/words/query.ts'
import type { SourceSelection } from './sources.ts'

/** Maximum number of newest matches that are ranked, which bounds the cost of common words. */
const MAX_RANKED = 5000

/**
 * Maximum number of operators and words of a query for ranking by cover density, which takes quadratic time: 0.1 ms per
 * row for 64, 66 ms for one word repeated 1,300 times. Longer queries are ranked without positions: 0.2 ms for 1,800.
 */
const MAX_COVER_NODES = 64

/** A row found by words. Ranks of the same kind of match are comparable across sources. */
const Hit = z.object({
  ref_id: z.string(),
  container_id: z.string(),
  match: z.enum(['phrase', 'all', 'some']),
  rank: z.number(),
})
export type Hit = z.output<typeof Hit>

const hitRow = sql.type(Hit)

/** Weights of words: D as written, C in another form. */
const WEIGHTS = sql.fragment`'{0.1, 0.05, 0.4, 1}'::float4[]`

/** A word of a query, as a tsquery, and the share of sampled rows that contain it. */
const Word = z.object({ word: z.string(), share: z.number() })
export type Word = z.output<typeof Word>

const EveryWordMatch = z.object({ hits: z.array(Hit), words: z.array(Word).nullable() })
const everyWordRow = sql.type(EveryWordMatch)

/**
 * Returns rows that contain every word of the query; none if it has no words. Rows with the exact phrase come first, then
 * by cover density, for long queries by word weights. The lexeme of the project restricts the search of the gin index.
 *
 * If there are fewer than `minHits` rows, `words` has the share of each word in a hundred sampled rows; null for a
 * query of one word. The share is relative to a hundred even for a smaller sample. Each sampled row is read and
 * stripped once and tested for each word: unnesting the lexemes of all rows took four times as long.
 */
export function matchEveryWord(
  db: Queryable,
  selection: SourceSelection,
  { query, limit, minHits }: { query: WordQuery; limit: number; minHits: number },
): Promise<z.output<typeof EveryWordMatch>> {
  // A constant for the planner, which estimates from it.
  const every = sql.fragment`search_query(${query.all})`
  return db.one(everyWordRow`
    with parsed as materialized (
      select q.every, q.phrase, numnode(q.every) <= ${MAX_COVER_NODES} as is_short, ${hasRequiredWord(sql.fragment`q.every`)} as has_words
      from (select ${every} as every, search_query(${query.phrase}) as phrase) q
    ),
    hits as materialized (
      select c.id as ref_id, c.container_id, case when c.tsv @@ p.phrase then 'phrase' else 'all' end as match,
        case when p.is_short then ts_rank_cd(${WEIGHTS}, c.tsv, p.every, 1) else ts_rank(${WEIGHTS}, c.tsv, p.every, 1) end::float8
          as rank
      from parsed p cross join (${newestMatches(selection, every, sql.fragment`c.tsv`)}) c
      where ${hasRequiredWord(every)}
      order by match desc, rank desc, ref_id limit ${limit}
    ),
    words as materialized (
      select min(w.at) as at, w.query
      from (select at, search_query(forms) as query from unnest(${sql.array(query.words, 'text')}) with ordinality w (forms, at)) w
      where ${hasRequiredWord(sql.fragment`w.query`)}
      group by w.query
    ),
    sample as materialized (select strip(c.tsv) as tsv from (${selection.source.sample(selection)}) c),
    shares as (
      select w.at, w.query::text as word, count(s.tsv)::float8 / greatest(100, (select count(*) from sample)) as share
      from words w left join sample s on s.tsv @@ w.query group by w.at, w.query
    )
    select coalesce((select json_agg(h order by h.match desc, h.rank desc, h.ref_id) from hits h), '[]') as hits,
      case when (select count(*) from hits) < ${minHits} and (select count(*) from words) > 1 and (select has_words from parsed)
        then (select json_agg(s order by s.at) from shares s) end as words`)
}

/** Condition that a query has a required word; otherwise it would match all rows. */
const hasRequiredWord = (query: Fragment): Fragment => sql.fragment`querytree(${query}) not in ('', 'T')`

/**
 * Returns rows that contain some of the words, by the sum of the word weights, which decrease with frequency; shorter
 * rows first among equals. Queries the index word by word, which identifies the matched word: testing 5,000 tsvectors,
 * most of them stored out of line, took four times as long. Several words, which are rare, share one lateral subquery:
 * a subquery per word took three times as long to plan as to run. A single word may be common and is planned
 * separately.
 */
export function matchAnyWord(
  db: Queryable,
  selection: SourceSelection,
  { words, limit }: { words: readonly string[]; limit: number },
): Promise<readonly Hit[]> {
  const size = sql.fragment`pg_column_size(c.tsv) as size`
  const matches =
    words.length === 1
      ? sql.fragment`select 1::bigint as word, c.* from (${newestMatches(selection, sql.fragment`${words[0]}::tsquery`, size)}) c`
      : sql.fragment`
        select w.word, c.* from unnest(${sql.array([...words], 'text')}) with ordinality w (query, word)
        cross join lateral (${newestMatches(selection, sql.fragment`w.query::tsquery`, size)}) c`
  return db.any(hitRow`
    with found as materialized (${matches}),
    weights as (
      select word, ln(1 + sum(count(*)) over ()::float8 / (1 + count(*))) as weight from found group by word
    )
    select f.id as ref_id, f.container_id, 'some' as match, sum(w.weight) as rank
    from found f join weights w on w.word = f.word
    group by f.id, f.container_id, f.size order by rank desc, f.size, f.id limit ${limit}`)
}

/**
 * Query for the newest visible matches of a tsquery. Index: gin on tsv; for words in most rows (project_id, id), newest
 * first.
 */
function newestMatches({ source, projects, filter }: SourceSelection, query: Fragment, columns: Fragment): Fragment {
  const container = sql.identifier(['c', source.container])
  return sql.fragment`
    select c.id, ${container} as container_id, ${columns} from ${sql.identifier([source.table])} c
    where ${allOf([
      projects && equalsAny(sql.fragment`c.project_id`, projects),
      sql.fragment`c.tsv @@ ${projects ? sql.fragment`(${projectLexemes(projects)}::tsquery && ${query})` : query}`,
      filter?.({
        ref: sql.fragment`c.id`,
        container: sql.fragment`${container}`,
        owner: source.owner ?? sql.fragment`''`,
      }),
    ])}
    order by c.id desc limit ${MAX_RANKED}`
}

/** Returns a tsquery for the lexemes of projects, which all their rows contain. */
const projectLexemes = (projects: readonly string[]): string => projects.map(id => lexeme(`~p${id}`)).join(' | ')

/** Quotes a lexeme for a tsquery. */
const lexeme = (word: string): string => `'${word.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
