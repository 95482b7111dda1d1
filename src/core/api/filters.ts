import { z } from 'zod'
import { type Fragment, sql, substring } from '../db/sql.ts'
import { booleanQuery, enumListQuery, tagCondition, tagFilter, textFilter } from './lists.ts'

/** One query parameter that narrows a list: its schema, and its condition over the alias `t`. */
export type Filter<S extends z.ZodType = z.ZodType> = {
  schema: S
  where(value: NonNullable<z.output<S>>): Fragment | null
}

const column = (name: string): Fragment => sql.fragment`${sql.identifier(['t', name])}`

/** A condition of one's own; the schema carries the description. */
export const columnFilter = <S extends z.ZodType>(schema: S, where: Filter<S>['where']): Filter<S> => ({
  schema,
  where,
})

/** Rows whose column is the text given. */
export const equalsFilter = (name: string): Filter<typeof textFilter> =>
  columnFilter(textFilter.describe(`Exact match of \`${name}\``), value => sql.fragment`${column(name)} = ${value}`)

/** Rows whose column holds the text given, whatever the case. */
export const containsFilter = (name: string): Filter<typeof textFilter> =>
  columnFilter(
    textFilter.describe(`Part of \`${name}\`, whatever the case`),
    value => sql.fragment`${column(name)} ilike ${substring(value)}`,
  )

/** Rows whose column is one of the values given; the parameter may be repeated. */
export const oneOf = <const T extends readonly [string, ...string[]]>(name: string, values: T) =>
  columnFilter(
    enumListQuery(values).describe(`One \`${name}\` or several, by repeating it`),
    chosen => sql.fragment`${column(name)} = any(${sql.array(chosen as string[], 'text')})`,
  )

/** Rows whose column is true or false. */
export const flagFilter = (name: string) =>
  columnFilter(
    booleanQuery.optional().describe(`Only those whose \`${name}\` is so`),
    value => sql.fragment`${column(name)} = ${value}`,
  )

/** Rows that carry the tags given. */
export const tagsFilter = columnFilter(
  tagFilter.describe('`tags[key]=value`; several must all hold, an empty value matches the empty text'),
  tags => tagCondition(sql.fragment`t.tags`, tags),
)

export type Filters = Record<string, Filter<any>>

export const filterSchema = <F extends Filters>(filters: F) =>
  z.object(Object.fromEntries(Object.entries(filters).map(([name, { schema }]) => [name, schema]))) as z.ZodObject<{
    [K in keyof F]: F[K]['schema']
  }>

/** The conditions of the filters that a query uses. */
export const filterConditions = (filters: Filters, query: Record<string, unknown>): (Fragment | null)[] =>
  Object.entries(filters).flatMap(([name, { where }]) => (query[name] === undefined ? [] : [where(query[name])]))
