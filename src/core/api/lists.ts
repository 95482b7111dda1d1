import { z } from 'zod'
import { all, counting, type Fragment, type Queryable, sql } from '../db/sql.ts'
import { invalid, type Problem } from './errors.ts'
import type { Context, Page } from './operation.ts'

/** The envelope of every list. */
export const pageOf = <T extends z.ZodType>(item: T) =>
  z.object({ data: z.array(item), total: z.int(), limit: z.int(), offset: z.int() })

export type PageBody<T> = { data: T[]; total: number; limit: number; offset: number }

/** A repeatable enum filter; its values are ORed. An unknown or empty value is refused. */
export const anyOf = <const T extends readonly [string, ...string[]]>(values: T) =>
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

/** `true` or `false` as a query parameter; anything else is refused. */
export const booleanQuery = z.enum(['true', 'false']).transform(value => value === 'true')

/** `tags[key]=value`; several are ANDed, an empty value matches the empty string. */
export const tagFilter = z.record(z.string().min(1).max(128), z.string().max(256)).optional()

export const tagCondition = (column: Fragment, tags: Record<string, string> | undefined): Fragment | null =>
  tags && Object.keys(tags).length > 0 ? sql.fragment`${column} @> ${JSON.stringify(tags)}::jsonb` : null

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
  if (problems.length > 0) invalid(problems)
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

/** Inclusive bounds on a time column. */
export const between = (column: Fragment, page: Pick<Page, 'from' | 'to'>): Fragment =>
  all([
    page.from && sql.fragment`${column} >= ${page.from.toISOString()}::timestamptz`,
    page.to && sql.fragment`${column} <= ${page.to.toISOString()}::timestamptz`,
  ])

/**
 * One page of rows and the exact total, in one statement; a second one only when the offset lies beyond the last
 * row. `from` is the table with its alias and joins, `order` must end in a unique column. With a `key`, its rows are
 * counted and sorted by it alone and read whole only for the page: counting 50,000 wide rows takes twice as long.
 */
export async function page<Row>(
  context: { db: Queryable; page: Page },
  query: {
    columns: Fragment
    from: Fragment
    where: (Fragment | null | undefined | false)[]
    order: Fragment
    key?: Fragment
    present: (row: Row) => unknown
  },
): Promise<PageBody<unknown>> {
  const { limit, offset } = context.page
  const { columns, from, key, order } = query
  const where = all(query.where)
  const part = (selected: Fragment) => sql.fragment`
    select ${selected}, count(*) over () as page_total from ${from} where ${where} order by ${order} limit ${limit} offset ${offset}`
  // Untyped: the columns are the caller's, the total stands beside them.
  const statement = key
    ? sql.unsafe`
        select ${columns}, page.page_total from (${part(sql.fragment`${key} as page_key`)}) as page
        join ${from} on ${key} = page.page_key order by ${order}`
    : sql.unsafe`${part(columns)}`
  const rows = (await context.db.any(statement)) as readonly (Row & { page_total: number })[]
  let total = rows[0]?.page_total ?? 0
  if (rows.length === 0 && offset > 0)
    total = await context.db.oneFirst(counting`select count(*) from ${from} where ${where}`)
  const data = rows.map(row => {
    const { page_total: _, ...rest } = row
    return query.present(rest as unknown as Row)
  })
  return { data, total, limit, offset }
}

/** A page of values that are already in memory. */
export function pageOfArray<T>(items: readonly T[], { limit, offset }: Page): PageBody<T> {
  return { data: items.slice(offset, offset + limit), total: items.length, limit, offset }
}

/** The page of a list over a table aliased `t` that has project_id, id, created_at and, when the kind has them, tags. */
export function listTable<Row>(
  context: Pick<Context, 'db' | 'page' | 'visible'>,
  query: {
    table: string
    columns?: Fragment
    tags?: boolean
    /** The kind has paths, and the table a column for them. */
    path?: boolean
    where?: (Fragment | null | undefined | false)[]
    order?: Fragment
    present: (row: Row) => unknown
  },
): Promise<PageBody<unknown>> {
  return page<Row>(context, {
    columns: query.columns ?? sql.fragment`t.*`,
    from: sql.fragment`${sql.identifier([query.table])} t`,
    where: [
      context.visible({
        project: sql.fragment`t.project_id`,
        id: sql.fragment`t.id`,
        ...(query.tags ? { tags: sql.fragment`t.tags` } : {}),
        ...(query.path ? { path: sql.fragment`t.path` } : {}),
      }),
      between(sql.fragment`t.created_at`, context.page),
      ...(query.where ?? []),
    ],
    order: query.order ?? sql.fragment`t.created_at desc, t.id desc`,
    key: sql.fragment`t.id`,
    present: query.present,
  })
}
