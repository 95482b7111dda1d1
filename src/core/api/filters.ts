import { z } from 'zod'
import { type Fragment, sql, substring } from '../db/sql.ts'
import { booleanQuery, enumListQuery, tagCondition, tagFilter, textFilter } from './lists.ts'

/** A query parameter that filters a list: its schema, and its condition over the alias `t`. */
export type Filter<S extends z.ZodType = z.ZodType> = {
  schema: S
  where(value: NonNullable<z.output<S>>): Fragment | null
}

const columnOf = (name: string): Fragment => sql.fragment`${sql.identifier(['t', name])}`

/** Returns a filter with a custom condition; the schema carries the description. */
export const columnFilter = <S extends z.ZodType>(schema: S, where: Filter<S>['where']): Filter<S> => ({
  schema,
  where,
})

/** Returns a filter for rows whose column equals the value. */
export const equalsFilter = (name: string): Filter<typeof textFilter> =>
  columnFilter(textFilter.describe(`Exact match of \`${name}\``), value => sql.fragment`${columnOf(name)} = ${value}`)

/** Returns a filter for rows whose column contains the value, ignoring case. */
export const containsFilter = (name: string): Filter<typeof textFilter> =>
  columnFilter(
    textFilter.describe(`Substring of \`${name}\`, case-insensitive`),
    value => sql.fragment`${columnOf(name)} ilike ${substring(value)}`,
  )

/** Returns a filter for rows whose column is one of the values of a repeatable parameter. */
export const oneOf = <const T extends readonly [string, ...string[]]>(name: string, values: T) =>
  columnFilter(
    enumListQuery(values).describe(`Value of \`${name}\`; repeat the parameter to match any of several`),
    chosen => sql.fragment`${columnOf(name)} = any(${sql.array(chosen as string[], 'text')})`,
  )

/** Returns a filter for rows by a boolean column. */
export const flagFilter = (name: string) =>
  columnFilter(
    booleanQuery.optional().describe(`Value of \`${name}\``),
    value => sql.fragment`${columnOf(name)} = ${value}`,
  )

/** Matches rows that have all given tags. */
export const tagsFilter = columnFilter(
  tagFilter.describe('Tags as `tags[key]=value`; all must match. An empty value matches the empty string'),
  tags => tagCondition(sql.fragment`t.tags`, tags),
)

export type Filters = Record<string, Filter<any>>

export const filterSchema = <F extends Filters>(filters: F) =>
  z.object(Object.fromEntries(Object.entries(filters).map(([name, { schema }]) => [name, schema]))) as z.ZodObject<{
    [K in keyof F]: F[K]['schema']
  }>

/** Returns the conditions of the filters that a query contains. */
export const filterConditions = (filters: Filters, query: Record<string, unknown>): (Fragment | null)[] =>
  Object.entries(filters).flatMap(([name, { where }]) => (query[name] === undefined ? [] : [where(query[name])]))
