import { cellOfId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Cells } from '#core/services/cells.ts'
import { HOME_TABLES } from '#core/services/copied-rows.ts'
import { HAS_TWO_SERVERS } from './postgres.ts'

type Query = Parameters<Queryable['query']>[0]
type Row = Record<string, unknown>

/** The end of an ID, which has the number of its cell; its prefix does not matter. */
const ID_END = /_[0-9a-hjkmnp-tv-z]{26}(?!\w)/g

const TABLE = /\b(?:from|join|into|update|only) ([a-z_]+)/g
/** What has the word of a table without one. */
const NO_TABLE = /\bextract\(\w+ from |\bdistinct from /g
const AGGREGATE =
  /^\s*select (?:\(select |(?:coalesce\()?(?:count|sum|max|min|pg_total_relation_size|bool_or|exists|array_agg|json_agg|jsonb_agg)\b)/

const atHome: ReadonlySet<string> = new Set(HOME_TABLES.map(({ table }) => table))

/** Returns the number of the cell of the first ID in a statement that has one, else 0. */
function cellIn({ sql: text, values }: Query): number {
  const texts = [text, ...values.flat()].filter(value => typeof value === 'string')
  const numbers = texts.flatMap(each => [...each.matchAll(ID_END)].map(([end]) => cellOfId(`x${end}`)))
  return numbers.find(number => number !== 0) ?? 0
}

const tablesIn = ({ sql: text }: Query): string[] =>
  [...text.toLowerCase().replace(NO_TABLE, '(').matchAll(TABLE)].map(([, table]) => table)

/** Whether all tables of a statement are at home, and copied to other cells. */
const isOfHome = (tables: readonly string[]): boolean => tables.length > 0 && tables.every(table => atHome.has(table))

/** System catalogues, of which tests read the rows of one cell. */
const CATALOGUE: ReadonlySet<string> = new Set([
  'pg_attribute',
  'pg_class',
  'pg_constraint',
  'pg_index',
  'pg_proc',
  'pg_trigger',
])

/** Whether all tables of a statement are of the server or the database. */
const isOfServer = (tables: readonly string[]): boolean => tables.every(table => table.startsWith('pg_'))

/**
 * Returns a statement as a cell executes it: a cell in a schema of the database has its queues there too, not in a separate schema as
 * at home, and a trigger or function that is dropped in all cells may exist in one.
 */
function inSchemaOf({ cell }: Services, query: Query): Query {
  const dropping = query.sql.replace(
    /^(\s*drop (?:trigger|function|sequence|index|table) )(?!if exists)/,
    '$1if exists ',
  )
  return { ...query, sql: cell?.number && !HAS_TWO_SERVERS ? dropping.replaceAll('pgboss.', '') : dropping }
}

/** Returns one row with the totals of the rows of an aggregate in several cells. */
function addUp(rows: readonly Row[]): Row {
  const names = Object.keys(rows[0])
  return Object.fromEntries(
    names.map(name => {
      const values = rows.map(row => row[name]).filter(value => value !== null)
      if (values.length > 0 && values.every(value => typeof value === 'number'))
        return [name, values.reduce((sum, value) => sum + value, 0)]
      if (values.some(value => typeof value === 'boolean')) return [name, values.includes(true)]
      return [name, values.every(Array.isArray) && values.length > 0 ? values.flat() : (values[0] ?? null)]
    }),
  )
}

/**
 * Statements of tests, past the API, in a deployment with cells: a statement with the ID of a row or project of another cell than
 * home is executed there, a statement about users and policies at home, an insert or a plan without such IDs in the cell of `main`, one
 * about the catalogue in the cell of `main`, and about the server too if the cells have one database, and every other one,
 * such as `create`, in all cells, with the rows of all.
 */
export function poolOfCells(cells: Cells, main: Services): Queryable {
  const everywhere = () => {
    const others = cells.all().flatMap(({ services }) => (services && services.pool !== main.pool ? [services] : []))
    return [main, ...others]
  }
  const servicesFor = (query: Query): Services[] => {
    const number = cellIn(query)
    if (number !== 0) return [cells.numbered(number)]
    const tables = tablesIn(query)
    if (isOfHome(tables)) return [cells.home]
    if (/^\s*create\b/i.test(query.sql)) return everywhere()
    if (/\binsert into\b|^\s*explain\b/i.test(query.sql)) return [main]
    if (tables.length > 0 && isOfServer(tables) && (!HAS_TWO_SERVERS || tables.every(table => CATALOGUE.has(table))))
      return [main]
    return everywhere()
  }
  const execute = async (query: Query) => {
    const results: Awaited<ReturnType<Queryable['query']>>[] = []
    for (const services of servicesFor(query)) results.push(await services.pool.query(inSchemaOf(services, query)))
    const rows = results.flatMap(result => result.rows as Row[])
    const isTotal = results.length > 1 && rows.length === results.length && AGGREGATE.test(query.sql)
    const isGrouped = /\bgroup by\b/.test(query.sql)
    return {
      ...results[0],
      rows: isTotal && !isGrouped ? [addUp(rows)] : rows,
      rowCount: results.reduce((sum, { rowCount }) => sum + (rowCount ?? 0), 0),
    }
  }
  const rowsOf = async (query: Query): Promise<Row[]> => (await execute(query)).rows
  const only = (rows: readonly Row[], query: Query): Row | null => {
    if (rows.length > 1) throw new Error(`several rows in the cells: ${query.sql}`)
    return rows[0] ?? null
  }
  const firstOf = (row: Row): unknown => Object.values(row)[0]
  const required = <T>(value: T | null | undefined, query: Query): T => {
    if (value === null || value === undefined) throw new Error(`no row in any cell: ${query.sql}`)
    return value
  }
  const many = async (query: Query) => {
    const rows = await rowsOf(query)
    required(rows[0], query)
    return rows
  }
  const maybeOne = async (query: Query) => only(await rowsOf(query), query)
  const one = async (query: Query) => required(await maybeOne(query), query)
  return {
    query: execute,
    any: rowsOf,
    anyFirst: async (query: Query) => (await rowsOf(query)).map(firstOf),
    many,
    manyFirst: async (query: Query) => (await many(query)).map(firstOf),
    maybeOne,
    maybeOneFirst: async (query: Query) => {
      const row = await maybeOne(query)
      return row && firstOf(row)
    },
    one,
    oneFirst: async (query: Query) => firstOf(await one(query)),
    exists: async (query: Query) => {
      for (const services of servicesFor(query))
        if (await services.pool.exists(inSchemaOf(services, query))) return true
      return false
    },
  } as Queryable
}
