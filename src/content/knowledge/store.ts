import { z } from 'zod'
import { all, type Fragment, isOneOf, type Queryable, sql } from '../../core/db/sql.ts'
import type { Selection } from './sources.ts'

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

/** Beside what `set_config` returns. */
const read = sql.type(z.object({ tree: z.string(), words: z.array(z.string()) }))
const found = sql.type(z.object({ hits: z.array(Hit), shares: z.record(z.string(), z.number()).nullable() }))

/**
 * Bounds the time of the transaction's statements and reads the query as PostgreSQL does: `asks` is false when no word is
 * left to search for, `exact` is true when it quotes or excludes something.
 */
export async function readQuery(
  db: Queryable,
  { textSearch, query, timeoutMs }: { textSearch: string; query: string; timeoutMs: number },
): Promise<{ asks: boolean; exact: boolean; words: string[] }> {
  const { tree, words } = await db.one(read`
    select set_config('statement_timeout', ${String(timeoutMs)}, true), set_config('jit', 'off', true),
      set_config('plan_cache_mode', 'force_custom_plan', true),
      querytree(websearch_to_tsquery(${textSearch}::regconfig, ${query})) as tree,
      to_json(tsvector_to_array(to_tsvector(${textSearch}::regconfig, ${query}))) as words`)
  return { asks: tree !== '' && tree !== 'T', exact: /"|(^|\s)-/.test(query), words }
}

/**
 * Rows that hold every word of the query: those with the words in their order first, then by cover density, for long
 * queries by the words' weights. The lexeme of the project keeps the search of the gin index inside it.
 *
 * Where they are fewer than `wanted`, `shares` says how common words are: how many in a hundred sampled rows hold each, as a
 * share; words that none holds are missing. Of a smaller sample a word of few rows is no common one. Each row is read and
 * stripped once, and then asked for each word: to unnest the lexemes of all rows instead took four times as long.
 */
export async function matchAll(
  db: Queryable,
  selection: Selection,
  { textSearch, query, limit, wanted, words }: MatchOptions,
): Promise<{ hits: readonly Hit[]; shares: ReadonlyMap<string, number> | null }> {
  const asked = sql.fragment`websearch_to_tsquery(${textSearch}::regconfig, ${query})`
  const { hits, shares } = await db.one(found`
    with hits as materialized (
      select c.id as ref_id, c.container_id,
        case when c.tsv @@ phraseto_tsquery(${textSearch}::regconfig, ${query}) then 'phrase' else 'all' end as match,
        case when numnode(${asked}) <= ${MOST_COVERED} then ts_rank_cd(c.tsv, ${asked}, 1) else ts_rank(c.tsv, ${asked}, 1) end::float8
          as rank
      from (${matching(selection, asked, sql.fragment`c.tsv`)}) c
      order by match desc, rank desc, ref_id limit ${limit}
    ),
    sample as materialized (select strip(c.tsv) as tsv from (${selection.source.sample(selection)}) c),
    words as materialized (
      select lexeme, query::tsquery from unnest(${sql.array([...words], 'text')}, ${sql.array(words.map(lexeme), 'text')}) w (lexeme, query)
    ),
    shares as (
      select w.lexeme, count(*)::float8 / greatest(100, (select count(*) from sample)) as share
      from words w join sample s on s.tsv @@ w.query group by w.lexeme
    )
    select coalesce((select json_agg(h order by h.match desc, h.rank desc, h.ref_id) from hits h), '[]') as hits,
      case when (select count(*) from hits) < ${wanted}
        then coalesce((select json_object_agg(s.lexeme, s.share) from shares s), '{}') end as shares`)
  return { hits, shares: shares && new Map(Object.entries(shares)) }
}

type MatchOptions = {
  textSearch: string
  query: string
  limit: number
  /** 0: how common words are is not asked. */
  wanted: number
  words: readonly string[]
}

/**
 * Rows that hold some of the words, by the sum of the words' weights: the fewer of the rows hold a word, the more it weighs.
 * Shorter rows first among equals. Word by word, because the index then knows who holds what: to ask it of 5,000 tsvectors
 * instead, most of them stored out of line, took four times as long.
 */
export function matchSome(
  db: Queryable,
  selection: Selection,
  { words, limit }: { words: readonly string[]; limit: number },
): Promise<readonly Hit[]> {
  const size = sql.fragment`pg_column_size(c.tsv) as size`
  const found = words.map(
    (word, index) => sql.fragment`
      select ${index}::int as word, c.* from (${matching(selection, sql.fragment`${lexeme(word)}::tsquery`, size)}) c`,
  )
  return db.any(hit`
    with found as materialized (${sql.join(found, sql.fragment` union all `)}),
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
function matching({ source, projects, filter }: Selection, query: Fragment, columns: Fragment): Fragment {
  const container = sql.identifier(['c', source.container])
  return sql.fragment`
    select c.id, ${container} as container_id, ${columns} from ${sql.identifier([source.table])} c
    where ${all([
      projects && isOneOf(sql.fragment`c.project_id`, projects),
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
