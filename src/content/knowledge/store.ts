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
export type Hit = { ref_id: string; container_id: string; match: 'phrase' | 'all' | 'some'; rank: number }

const hit = sql.type(
  z.object({
    ref_id: z.string(),
    container_id: z.string(),
    match: z.enum(['phrase', 'all', 'some']),
    rank: z.number(),
  }),
)

/** Beside what `set_config` returns. */
const read = sql.type(z.object({ tree: z.string(), words: z.array(z.string()) }))
const share = sql.type(z.object({ lexeme: z.string(), share: z.number() }))

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
 */
export function matchAll(
  db: Queryable,
  selection: Selection,
  { textSearch, query, limit }: { textSearch: string; query: string; limit: number },
): Promise<readonly Hit[]> {
  const asked = sql.fragment`websearch_to_tsquery(${textSearch}::regconfig, ${query})`
  return db.any(hit`
    select m.ref_id, m.container_id, m.match, m.rank from (
      select c.id as ref_id, c.container_id,
        case when c.tsv @@ phraseto_tsquery(${textSearch}::regconfig, ${query}) then 'phrase' else 'all' end as match,
        case when numnode(${asked}) <= ${MOST_COVERED} then ts_rank_cd(c.tsv, ${asked}, 1) else ts_rank(c.tsv, ${asked}, 1) end::float8
          as rank
      from (${matching(selection, asked, sql.fragment`c.tsv`)}) c
    ) m
    order by m.match desc, m.rank desc, m.ref_id limit ${limit}`)
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
 * How many in a hundred sampled rows hold each word, as a share; words that none holds are missing. Of a smaller sample a
 * word of few rows is no common one. Each row is read and stripped once, and then asked for each word: to unnest the lexemes
 * of all rows instead took four times as long.
 */
export async function commonness(
  db: Queryable,
  selection: Selection,
  words: readonly string[],
): Promise<Map<string, number>> {
  const rows = await db.any(share`
    with sample as materialized (select strip(c.tsv) as tsv from (${selection.source.sample(selection)}) c),
    asked as materialized (
      select lexeme, query::tsquery from unnest(${sql.array([...words], 'text')}, ${sql.array(words.map(lexeme), 'text')}) w (lexeme, query)
    )
    select a.lexeme, count(*)::float8 / greatest(100, (select count(*) from sample)) as share
    from asked a join sample s on s.tsv @@ a.query group by a.lexeme`)
  return new Map(rows.map(row => [row.lexeme, row.share]))
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
      filter?.({ ref: sql.fragment`c.id`, container: sql.fragment`${container}` }),
    ])}
    order by c.id desc limit ${RANKED}`
}

/** The lexeme that every row of a project holds. */
const tenants = (projects: readonly string[]): string => projects.map(id => lexeme(`~p${id}`)).join(' | ')

/** A lexeme as the text of a tsquery. */
const lexeme = (word: string): string => `'${word.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
