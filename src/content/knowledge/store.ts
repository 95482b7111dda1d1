import { z } from 'zod'
import { allOf, equalsAny, type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import type { SourceSelection } from './sources.ts'

/** Newest matches that are ranked; more rows are not read for a word that half the project holds. */
const RANKED = 5000

/**
 * Operators and words of a query that are ranked by cover density, whose time grows with their square: 0.1 ms a row for 64,
 * 66 for one word 1,300 times. Beyond, the words are weighed without their places, in 0.2 ms for 1,800.
 */
const MOST_COVERED = 64

/** A row that the lexical channel found. Ranks of one kind of match can be compared over sources. */
const Hit = z.object({
  ref_id: z.string(),
  container_id: z.string(),
  match: z.enum(['phrase', 'all', 'some']),
  rank: z.number(),
})
export type Hit = z.output<typeof Hit>

const hit = sql.type(Hit)

/** A word of a query, and the share of the sampled rows that hold it. */
const Word = z.object({ word: z.string(), share: z.number() })
export type Word = z.output<typeof Word>

const Found = z.object({ hits: z.array(Hit), words: z.array(Word).nullable() })
const found = sql.type(Found)

/** Words of a query that are looked at to find the rarest. */
const WORDS_WEIGHED = 64

/**
 * Rows that hold every word of the query, as PostgreSQL reads it; none where it leaves no word to search for. Those with the
 * words in their order come first, then by cover density, for long queries by the words' weights. The lexeme of the project
 * keeps the search of the gin index inside it.
 *
 * Where they are fewer than `wanted`, `words` says how common each word of the query is among a hundred sampled rows; null
 * where it has no second one. Of a smaller sample a word of few rows is no common one. Each row is read and stripped once, and
 * then asked for each word: to unnest the lexemes of all rows instead took four times as long.
 */
export function matchEveryWord(
  db: Queryable,
  selection: SourceSelection,
  { textSearch, query, limit, wanted }: { textSearch: string; query: string; limit: number; wanted: number },
): Promise<z.output<typeof Found>> {
  const asked = sql.fragment`websearch_to_tsquery(${textSearch}::regconfig, ${query})`
  return db.one(found`
    with hits as materialized (
      select c.id as ref_id, c.container_id,
        case when c.tsv @@ phraseto_tsquery(${textSearch}::regconfig, ${query}) then 'phrase' else 'all' end as match,
        case when numnode(${asked}) <= ${MOST_COVERED} then ts_rank_cd(c.tsv, ${asked}, 1) else ts_rank(c.tsv, ${asked}, 1) end::float8
          as rank
      from (${matching(selection, asked, sql.fragment`c.tsv`)}) c
      where ${asks(asked)}
      order by match desc, rank desc, ref_id limit ${limit}
    ),
    words as materialized (
      select at, word, ('''' || replace(replace(word, '\\', '\\\\'), '''', '''''') || '''')::tsquery as query
      from unnest(tsvector_to_array(to_tsvector(${textSearch}::regconfig, ${query}))) with ordinality w (word, at)
      where at <= ${WORDS_WEIGHED}
    ),
    sample as materialized (select strip(c.tsv) as tsv from (${selection.source.sample(selection)}) c),
    shares as (
      select w.at, w.word, count(s.tsv)::float8 / greatest(100, (select count(*) from sample)) as share
      from words w left join sample s on s.tsv @@ w.query group by w.at, w.word
    )
    select coalesce((select json_agg(h order by h.match desc, h.rank desc, h.ref_id) from hits h), '[]') as hits,
      case when (select count(*) from hits) < ${wanted} and (select count(*) from words) > 1 and ${asks(asked)}
        then (select json_agg(s order by s.at) from shares s) end as words`)
}

/** Whether a query has a word that is to be there: without one it would read all that there is. */
const asks = (query: Fragment): Fragment => sql.fragment`querytree(${query}) not in ('', 'T')`

/**
 * Rows that hold some of the words, by the sum of the words' weights: the fewer of the rows hold a word, the more it weighs.
 * Shorter rows first among equals. Word by word, because the index then knows who holds what: to ask it of 5,000 tsvectors
 * instead, most of them stored out of line, took four times as long. One subquery for all of several words, which are rare:
 * one for each took three times as long to plan as to run. A single word may be common, and is planned as what it is.
 */
export function matchAnyWord(
  db: Queryable,
  selection: SourceSelection,
  { words, limit }: { words: readonly string[]; limit: number },
): Promise<readonly Hit[]> {
  const size = sql.fragment`pg_column_size(c.tsv) as size`
  const queries = words.map(lexeme)
  const found =
    queries.length === 1
      ? sql.fragment`select 1::bigint as word, c.* from (${matching(selection, sql.fragment`${queries[0]}::tsquery`, size)}) c`
      : sql.fragment`
        select w.word, c.* from unnest(${sql.array(queries, 'text')}) with ordinality w (query, word)
        cross join lateral (${matching(selection, sql.fragment`w.query::tsquery`, size)}) c`
  return db.any(hit`
    with found as materialized (${found}),
    weights as (
      select word, ln(1 + sum(count(*)) over ()::float8 / (1 + count(*))) as weight from found group by word
    )
    select f.id as ref_id, f.container_id, 'some' as match, sum(w.weight) as rank
    from found f join weights w on w.word = f.word
    group by f.id, f.container_id, f.size order by rank desc, f.size, f.id limit ${limit}`)
}

/**
 * The newest matches of a tsquery within what the search may see. By the gin index on tsv; a word that most rows hold by
 * (project_id, id) instead, from the newest on.
 */
function matching({ source, projects, filter }: SourceSelection, query: Fragment, columns: Fragment): Fragment {
  const container = sql.identifier(['c', source.container])
  return sql.fragment`
    select c.id, ${container} as container_id, ${columns} from ${sql.identifier([source.table])} c
    where ${allOf([
      projects && equalsAny(sql.fragment`c.project_id`, projects),
      sql.fragment`c.tsv @@ ${projects ? sql.fragment`(${tenants(projects)}::tsquery && ${query})` : query}`,
      filter?.({
        ref: sql.fragment`c.id`,
        container: sql.fragment`${container}`,
        owner: source.owner ?? sql.fragment`''`,
      }),
    ])}
    order by c.id desc limit ${RANKED}`
}

/** The lexeme that every row of a project holds. */
const tenants = (projects: readonly string[]): string => projects.map(id => lexeme(`~p${id}`)).join(' | ')

/** A lexeme as the text of a tsquery. */
const lexeme = (word: string): string => `'${word.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
