import { z } from 'zod'
import { allOf, countStatement, type Fragment, jsonb, type Queryable, rawFragment, sql } from '../db/sql.ts'
import { type Problem, raiseInvalid } from './errors.ts'
import type { Context, Page } from './operation.ts'

/** The envelope of every list. */
export const pageOf = <T extends z.ZodType>(item: T) =>
  z.object({ data: z.array(item), total: z.int(), limit: z.int(), offset: z.int() })

export type PageBody<T> = { data: T[]; total: number; limit: number; offset: number }

/** A repeatable enum filter; its values are ORed. An unknown or empty value is refused. */
export const enumListQuery = <const T extends readonly [string, ...string[]]>(values: T) =>
  z
    .preprocess(
      (value, context) => {
        if (typeof value !== 'string') return value
        // Given once it is no list: what is wrong with it is named without an index.
        if (!values.includes(value)) context.addIssue({ code: 'invalid_value', values: [...values], input: value })
        return [value]
      },
      z.array(z.enum(values)).min(1),
    )
    .optional() as unknown as z.ZodOptional<z.ZodArray<z.ZodEnum<{ [K in T[number]]: K }>>>

/** An exact-match filter. */
export const textFilter = z.string().min(1).max(2048).optional()

const BOOLEANS = new Map<unknown, boolean>([
  ['true', true],
  ['1', true],
  ['false', false],
  ['0', false],
])

/** `true`, `false`, `1` or `0` as a query parameter; anything else is refused. */
export const booleanQuery = z.preprocess((value, context) => {
  const read = BOOLEANS.get(value)
  if (read === undefined) context.addIssue({ code: 'invalid_value', values: ['true', 'false'], input: value })
  return read
}, z.boolean())

/** `tags[key]=value`; several are ANDed, an empty value matches the empty string. */
export const tagFilter = z.record(z.string().min(1).max(128), z.string().max(256)).optional()

export const tagCondition = (column: Fragment, tags: Record<string, string> | undefined): Fragment | null =>
  tags && Object.keys(tags).length > 0 ? sql.fragment`${column} @> ${jsonb(tags)}` : null

const INTEGER = /^\d{1,15}$/

/** limit, offset, from, to out of a raw query. Raises VALIDATION_FAILED. */
export function parsePage(query: Record<string, unknown>, size: { default: number; max: number }): Page {
  const problems: Problem[] = []
  const whole = (name: string, min: number, fallback: number): number => {
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
    if (!parsed) problems.push({ code: 'INVALID_VALUE', path: name, message: 'must be one ISO 8601 time' })
    return parsed
  }
  const limit = Math.min(whole('limit', 1, size.default), size.max)
  const offset = whole('offset', 0, 0)
  const from = time('from')
  const to = time('to')
  if (problems.length > 0) raiseInvalid(problems)
  return { limit, offset, from, to }
}

const ISO = /^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?)?$/

/** An ISO 8601 time or date, UTC when it names no zone; null when it is neither. */
export function parseTime(value: unknown): Date | null {
  if (typeof value !== 'string' || !ISO.test(value)) return null
  const zoned = value.includes('T') && !/(Z|[+-]\d{2}:?\d{2})$/.test(value) ? `${value}Z` : value
  const time = new Date(zoned)
  if (Number.isNaN(time.getTime())) return null
  // Years that ISO text writes with four digits; Date would take 30 February for 2 March.
  const year = time.getUTCFullYear()
  const day = new Date(`${value.slice(0, 10)}T00:00:00Z`)
  return year >= 1 && year <= 9999 && day.getUTCDate() === Number(value.slice(8, 10)) ? time : null
}

const ofTime = <S extends z.ZodType<string, string>>(text: S, message: string) =>
  text.refine(value => parseTime(value) !== null, message).transform(value => (parseTime(value) as Date).toISOString())

/** A time of a body in UTC. The database would refuse some of the offsets, and a year that they lead out of four digits. */
export const timeInput = ofTime(z.iso.datetime({ offset: true }), 'must be an ISO 8601 time')

/** The same, also of a date alone or without an offset. */
export const timeOrDateInput = ofTime(z.string(), 'must be one ISO 8601 time')

/** Inclusive bounds on a time column; null without any. */
export const timeRangeCondition = (column: Fragment, { from, to }: Pick<Page, 'from' | 'to'>): Fragment | null =>
  from || to
    ? allOf([
        from && sql.fragment`${column} >= ${from.toISOString()}::timestamptz`,
        to && sql.fragment`${column} <= ${to.toISOString()}::timestamptz`,
      ])
    : null

/**
 * What `row_counts` says of a table: how many rows a project has in it (of deliveries a webhook), or without one all of
 * them. Exact in the statement that reads the rows.
 */
export const maintainedCount = (table: string, scope: string | null): Fragment => sql.fragment`(
  select coalesce(sum(c.count), 0)::bigint from row_counts c
  where c.table_name = ${table} and ${scope === null ? sql.fragment`true` : sql.fragment`c.scope = ${scope}`})`

/** The offset from which finding the page reads so many rows that it pays to count in the same scan. */
const DEEP_OFFSET = 10_000

/** Bytes of large rows that one answer shows, beside a row that is larger alone. */
export const MAX_PAGE_BYTES = 16 * 1024 * 1024

/** Rows that may be read beyond the page at next to no cost. */
const NEAR = 1_000
const NEAR_TEXT = rawFragment(String(NEAR))

/**
 * One page of rows and the exact total, in one statement; a second one only when the offset lies beyond the last row. Where
 * nothing narrows the list, `kept` says the total. Else it is counted, apart from the page (`count(*) over ()` keeps the rows
 * until the last one is counted: up to five times the cost). With a `key`, an index that has the order finds the page, and
 * rows are read whole only for it. With `bytes` of a row the page is cut to what one answer may show, and `limit` says so.
 */
export async function pageResult<Row>(
  context: { db: Queryable; page: Page },
  query: {
    columns: Fragment
    /** The table with its alias and joins. */
    from: Fragment
    /** The rows that the list has without filters. */
    rows?: Fragment
    /** How many these are, where that is known without counting. */
    kept?: Fragment | null | false
    filters?: (Fragment | null | undefined | false)[]
    /** The column that `from` and `to` bound. */
    time?: Fragment
    /** Ends in a unique column. */
    order: Fragment
    key?: Fragment
    /** What the large columns of a row hold. */
    bytes?: Fragment
    present: (row: Row) => unknown
  },
): Promise<PageBody<unknown>> {
  const { limit, offset } = context.page
  const { from, rows: listed, kept, time, order, key, bytes } = query
  const columns = bytes ? sql.fragment`${query.columns}, ${bytes} as page_bytes` : query.columns
  const filters = [...(query.filters ?? []), time && timeRangeCondition(time, context.page)]
  const where = allOf([listed, ...filters])
  const known = !filters.some(Boolean) && kept
  const count = known || sql.fragment`(select count(*) from ${from} where ${where})`
  const bounds = sql.fragment`where ${where} order by ${order} limit`
  const read = sql.fragment`select ${columns}, ${count} as page_total from ${from}`
  // Keys pay for themselves only where rows are skipped or counted. The bound in the text tells a prepared plan how few rows
  // it is about: without it, planning each time takes as long as the page. A limit keeps the order of what it cuts.
  const statement =
    known && offset + limit <= NEAR
      ? sql.fragment`select * from (${read} ${bounds} ${NEAR_TEXT}) page limit ${limit} offset ${offset}`
      : key
        ? byKeys(key)
        : sql.fragment`${read} ${bounds} ${limit} offset ${offset}`
  // Untyped: the columns are the caller's, the total stands beside them.
  const rows = (await context.db.any(sql.unsafe`${bytes ? fitting(statement) : statement}`)) as readonly (Row & {
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
  return { data, total: total ?? 0, limit: isCut ? data.length : limit, offset }

  /** Looks ahead of the page before it counts: few matches among many rows take one scan, not two. */
  function byKeys(key: Fragment): Fragment {
    const deep = !known && offset >= DEEP_OFFSET
    const most = known || deep ? limit : limit + NEAR
    const counted = deep
      ? sql.fragment`page_count`
      : sql.fragment`(select case count(*) when ${most} then ${count} else ${offset} + count(*) end from found)`
    return sql.fragment`
      with found as materialized (
        select ${key} as page_key ${deep ? sql.fragment`, count(*) over () as page_count` : sql.fragment``}
        from ${from} ${bounds} ${most} offset ${offset}
      )
      select ${columns}, ${counted} as page_total from (select * from found limit ${limit}) page
      join ${from} on ${key} = page_key order by ${order}`
  }
}

/** The first rows of a select in its order, at least one, of which the bytes before each are few enough. */
const fitting = (select: Fragment): Fragment => sql.fragment`
  select * from (
    select p.*, sum(p.page_bytes) over (rows between unbounded preceding and 1 preceding) as page_before
    from (${select}) p) q
  where coalesce(page_before, 0) < ${MAX_PAGE_BYTES}::bigint`

/** A page of values that are already in memory. */
export function pageOfArray<T>(items: readonly T[], { limit, offset }: Page): PageBody<T> {
  return { data: items.slice(offset, offset + limit), total: items.length, limit, offset }
}

/** The page of a list over a table aliased `t` that has project_id, id, created_at and, when the kind has them, tags. */
export function listTable<Row>(
  context: Pick<Context, 'db' | 'page' | 'project' | 'visible'>,
  query: {
    table: string
    /** The table's rows are counted in `row_counts` by project. */
    countKept?: boolean
    /** Rows that the list has at all, where some of the table are not of it; no others are counted either. */
    only?: Fragment
    columns?: Fragment
    tags?: boolean
    /** The kind has paths, and the table a column for them. */
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
