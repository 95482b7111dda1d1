import { z } from 'zod'
import { type Problem, raiseInvalid } from '../base/errors.ts'
import { allOf, countStatement, type Fragment, jsonb, type Queryable, rawFragment, sql } from '../db/sql.ts'
import type { Context, Page } from './operation.ts'

/** Returns the schema of a list page. */
export const pageOf = <T extends z.ZodType>(item: T) =>
  z.object({ data: z.array(item), total: z.int(), limit: z.int(), offset: z.int() })

export type PageBody<T> = { data: T[]; total: number; limit: number; offset: number }

/**
 * Returns the values of a repeatable query parameter as a list. The query parser makes an object with the indexes as
 * names of more than 20; an object with other names is none.
 */
export const queryValues = (value: unknown): unknown => {
  if (typeof value === 'string') return [value]
  if (typeof value !== 'object' || value === null) return value
  return Object.keys(value).every((name, index) => name === String(index)) ? Object.values(value) : value
}

/** Returns the schema of a repeatable enum filter, whose values are ORed. Unknown and empty values are refused. */
export const enumListQuery = <const T extends readonly [string, ...string[]]>(values: T) =>
  z
    .preprocess(
      (value, context) => {
        if (typeof value !== 'string') return queryValues(value)
        // A single value is not a list: its problem has a path without an index.
        if (!values.includes(value)) context.addIssue({ code: 'invalid_value', values: [...values], input: value })
        return [value]
      },
      z.array(z.enum(values)).min(1),
    )
    .optional() as unknown as z.ZodOptional<z.ZodArray<z.ZodEnum<{ [K in T[number]]: K }>>>

/** Schema of an exact-match filter. */
export const textFilter = z.string().min(1).max(2048).optional()

const INTEGER = /^\d{1,15}$/

const BOOLEANS = new Map<unknown, boolean>([
  ['true', true],
  ['1', true],
  ['false', false],
  ['0', false],
])

/** Schema of a boolean query parameter: `true`, `false`, `1` or `0`. */
export const booleanQuery = z.preprocess((value, context) => {
  const parsed = BOOLEANS.get(value)
  if (parsed === undefined) context.addIssue({ code: 'invalid_value', values: ['true', 'false'], input: value })
  return parsed
}, z.boolean())

/** Largest version or position in a query: of an integer column. */
export const MAX_INTEGER = 2 ** 31 - 1

/** Schema of an integer query parameter, written with digits. */
export const integerQuery = (min: number, max: number = Number.MAX_SAFE_INTEGER) =>
  z.preprocess(
    value => (typeof value === 'string' && INTEGER.test(value) ? Number(value) : value),
    z.int().min(min).max(max),
  )

/** Schema of a tag filter `tags[key]=value`; several are ANDed, an empty value matches the empty string. */
export const tagFilter = z.record(z.string().min(1).max(128), z.string().max(256)).optional()

export const tagCondition = (column: Fragment, tags: Record<string, string> | undefined): Fragment | null =>
  tags && Object.keys(tags).length > 0 ? sql.fragment`${column} @> ${jsonb(tags)}` : null

/** Parses limit, offset, from and to of a raw query. Raises VALIDATION_FAILED. */
export function parsePage(query: Record<string, unknown>, size: { default: number; max: number }): Page {
  const problems: Problem[] = []
  const integer = (name: string, min: number, fallback: number): number => {
    const value = query[name]
    if (value === undefined) return fallback
    if (typeof value !== 'string' || !INTEGER.test(value) || Number(value) < min) {
      problems.push({
        code: 'INVALID_VALUE',
        path: name,
        message: min === 1 ? 'must be an integer of at least 1' : 'must be an integer of at least 0',
      })
      return fallback
    }
    return Number(value)
  }
  const time = (name: string): Date | null => {
    const value = query[name]
    if (value === undefined) return null
    const parsed = parseTime(value)
    if (!parsed) problems.push({ code: 'INVALID_VALUE', path: name, message: 'must be an ISO 8601 time' })
    return parsed
  }
  const limit = Math.min(integer('limit', 1, size.default), size.max)
  const offset = integer('offset', 0, 0)
  const from = time('from')
  const to = time('to')
  if (problems.length > 0) raiseInvalid(problems)
  return { limit, offset, from, to }
}

const ISO = /^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?)?$/

/** Parses an ISO 8601 time or date, in UTC if it has no zone; null if it is invalid. */
export function parseTime(value: unknown): Date | null {
  if (typeof value !== 'string' || !ISO.test(value)) return null
  const zoned = value.includes('T') && !/(Z|[+-]\d{2}:?\d{2})$/.test(value) ? `${value}Z` : value
  const time = new Date(zoned)
  if (Number.isNaN(time.getTime())) return null
  // Only four-digit years, and only existing days: Date parses 30 February as 2 March.
  const year = time.getUTCFullYear()
  const day = new Date(`${value.slice(0, 10)}T00:00:00Z`)
  return year >= 1 && year <= 9999 && day.getUTCDate() === Number(value.slice(8, 10)) ? time : null
}

const ofTime = <S extends z.ZodType<string, string>>(text: S, message: string) =>
  text.refine(value => parseTime(value) !== null, message).transform(value => (parseTime(value) as Date).toISOString())

/** Schema of a time, converted to UTC: PostgreSQL refuses some offsets, and years beyond four digits. */
export const timeInput = ofTime(z.iso.datetime({ offset: true }), 'must be an ISO 8601 time')

/** Schema of a time or date, with or without an offset, converted to UTC. */
export const timeOrDateInput = ofTime(z.string(), 'must be an ISO 8601 time or date')

/** Returns the condition of inclusive bounds on a time column; null if there are none. */
export const timeRangeCondition = (column: Fragment, { from, to }: Pick<Page, 'from' | 'to'>): Fragment | null =>
  from || to
    ? allOf([
        from && sql.fragment`${column} >= ${from.toISOString()}::timestamptz`,
        to && sql.fragment`${column} <= ${to.toISOString()}::timestamptz`,
      ])
    : null

/**
 * Returns an expression for the number of rows of a table per scope, from `row_counts`: of a project, or of a webhook for
 * deliveries; of all rows if `scope` is null. Consistent with the rows read in the same statement.
 */
export const maintainedCount = (table: string, scope: string | null): Fragment => sql.fragment`(
  select coalesce(sum(c.count), 0)::bigint from row_counts c
  where c.table_name = ${table} and ${scope === null ? sql.fragment`true` : sql.fragment`c.scope = ${scope}`})`

/** Offset from which counting in the scan that finds the page is cheaper than a second scan. */
const DEEP_OFFSET = 10_000

/** Limit on the bytes of large rows in a page; a single larger row still forms a page. */
export const MAX_PAGE_BYTES = 16 * 1024 * 1024

const sizes = new WeakMap<object, readonly number[]>()

/** Returns the sizes of the rows of a page that is cut to MAX_PAGE_BYTES; undefined for other pages. */
export const rowSizes = (page: object): readonly number[] | undefined => sizes.get(page)

/** Number of rows that can be read beyond the page at negligible cost. */
const LOOKAHEAD = 1_000
const LOOKAHEAD_TEXT = rawFragment(String(LOOKAHEAD))

/**
 * Returns a page of rows and the exact total, in one statement; a second one only if the offset is beyond the last row. The
 * total of an unfiltered list is `kept`, if given. Otherwise a separate subquery counts the rows, because `count(*) over ()`
 * materializes them until the last one is counted, at up to five times the cost. With `key`, an index in list order finds
 * the page, and only its rows are read whole. With `bytes`, the page is cut to MAX_PAGE_BYTES, and `limit` is reduced to the
 * rows returned.
 */
export async function pageResult<Row>(
  context: { db: Queryable; page: Page },
  query: {
    columns: Fragment
    /** The table with its alias and joins. */
    from: Fragment
    /** Condition of the unfiltered list. */
    rows?: Fragment
    /** Number of rows of the unfiltered list, if it is maintained. */
    kept?: Fragment | null | false
    filters?: (Fragment | null | undefined | false)[]
    /** The column that `from` and `to` bound. */
    time?: Fragment
    /** Must end in a unique column. */
    order: Fragment
    key?: Fragment
    /** Size of the large columns of a row. */
    bytes?: Fragment
    present: (row: Row) => unknown
  },
): Promise<PageBody<unknown>> {
  const { limit, offset } = context.page
  const { from, rows: unfiltered, kept, time, order, key, bytes } = query
  const columns = bytes ? sql.fragment`${query.columns}, ${bytes} as page_bytes` : query.columns
  const filters = [...(query.filters ?? []), time && timeRangeCondition(time, context.page)]
  const where = allOf([unfiltered, ...filters])
  const known = !filters.some(Boolean) && kept
  const count = known || sql.fragment`(select count(*) from ${from} where ${where})`
  const bounds = sql.fragment`where ${where} order by ${order} limit`
  const select = sql.fragment`select ${columns}, ${count} as page_total from ${from}`
  // Keys are cheaper only if rows are skipped or counted. The literal bound gives a prepared plan a row estimate; without
  // it, the statement is replanned each time, which takes as long as the page. The outer limit preserves the inner order.
  const statement =
    known && offset + limit <= LOOKAHEAD
      ? sql.fragment`select * from (${select} ${bounds} ${LOOKAHEAD_TEXT}) page limit ${limit} offset ${offset}`
      : key
        ? selectByKeys(key)
        : sql.fragment`${select} ${bounds} ${limit} offset ${offset}`
  // Untyped: the caller's columns, with the total added.
  const rows = (await context.db.any(sql.unsafe`${bytes ? cutToBytes(statement) : statement}`)) as readonly (Row & {
    page_total: number
    page_bytes?: number
    page_before?: number
  })[]
  const beyond = rows.length === 0 && offset > 0
  const total = beyond ? await context.db.oneFirst(countStatement`select ${count} as count`) : rows[0]?.page_total
  const data = rows.map(({ page_total: _total, page_bytes: _bytes, page_before: _before, ...row }) =>
    query.present(row as unknown as Row),
  )
  const isCut = bytes !== undefined && data.length > 0 && data.length < Math.min(limit, (total ?? 0) - offset)
  const body = { data, total: total ?? 0, limit: isCut ? data.length : limit, offset }
  if (bytes)
    sizes.set(
      body,
      rows.map(({ page_bytes = 0 }) => page_bytes),
    )
  return body

  /** Reads ahead of the page before it counts: few matches among many rows need one scan instead of two. */
  function selectByKeys(key: Fragment): Fragment {
    const deep = !known && offset >= DEEP_OFFSET
    const max = known || deep ? limit : limit + LOOKAHEAD
    const total = deep
      ? sql.fragment`page_count`
      : sql.fragment`(select case count(*) when ${max} then ${count} else ${offset} + count(*) end from found)`
    return sql.fragment`
      with found as materialized (
        select ${key} as page_key ${deep ? sql.fragment`, count(*) over () as page_count` : sql.fragment``}
        from ${from} ${bounds} ${max} offset ${offset}
      )
      select ${columns}, ${total} as page_total from (select * from found limit ${limit}) page
      join ${from} on ${key} = page_key order by ${order}`
  }
}

/** Returns the first rows of a select whose total size is within MAX_PAGE_BYTES, at least one. */
const cutToBytes = (select: Fragment): Fragment => sql.fragment`
  select * from (
    select p.*, sum(p.page_bytes) over (rows between unbounded preceding and 1 preceding) as page_before
    from (${select}) p) q
  where coalesce(page_before, 0) < ${MAX_PAGE_BYTES}::bigint`

/** Returns a page of values in memory. */
export function pageOfArray<T>(items: readonly T[], { limit, offset }: Page): PageBody<T> {
  return { data: items.slice(offset, offset + limit), total: items.length, limit, offset }
}

/** Returns a page of lists whose first `offset` + `limit` items are given, in the order of all of them. */
export function mergedPage<T>(
  parts: readonly Pick<PageBody<T>, 'data' | 'total'>[],
  { limit, offset }: Page,
  compare: (left: T, right: T) => number,
): PageBody<T> {
  const items = parts.flatMap(({ data }) => data).sort(compare)
  const total = parts.reduce((sum, part) => sum + part.total, 0)
  return { data: items.slice(offset, offset + limit), total, limit, offset }
}

/** Returns the bounds of the items that the parts of a merged page need. */
export const partOfPage = ({ limit, offset, ...range }: Page): Page => ({ ...range, limit: offset + limit, offset: 0 })

/** Returns a page of a table aliased `t` with the columns project_id, id, created_at and, if the kind has tags, tags. */
export function listTable<Row>(
  context: Pick<Context, 'db' | 'page' | 'project' | 'visible'>,
  query: {
    table: string
    /** Whether `row_counts` maintains the number of rows per project. */
    countKept?: boolean
    /** Condition of the rows that belong to the list; `row_counts` must count the same rows. */
    only?: Fragment
    columns?: Fragment
    tags?: boolean
    /** Whether the kind has paths, and the table a column `path`. */
    path?: boolean
    filters?: (Fragment | null | undefined | false)[]
    order?: Fragment
    bytes?: Fragment
    present: (row: Row) => unknown
  },
): Promise<PageBody<unknown>> {
  const { table, countKept, filters, bytes, present } = query
  const visible = context.visible({
    project: sql.fragment`t.project_id`,
    id: sql.fragment`t.id`,
    ...(query.tags ? { tags: sql.fragment`t.tags` } : {}),
    ...(query.path ? { path: sql.fragment`t.path` } : {}),
  })
  return pageResult<Row>(context, {
    columns: query.columns ?? sql.fragment`t.*`,
    from: sql.fragment`${sql.identifier([table])} t`,
    rows: query.only ? sql.fragment`${visible.rows} and ${query.only}` : visible.rows,
    kept: countKept && visible.all && maintainedCount(table, context.project),
    filters,
    time: sql.fragment`t.created_at`,
    order: query.order ?? sql.fragment`t.created_at desc, t.id desc`,
    key: sql.fragment`t.id`,
    bytes,
    present,
  })
}
