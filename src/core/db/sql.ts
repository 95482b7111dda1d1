import {
  type CommonQueryMethods,
  createSqlTag,
  ForeignKeyIntegrityConstraintViolationError,
  type FragmentSqlToken,
  type QuerySqlToken,
} from 'slonik'
import { z } from 'zod'

export const sql = createSqlTag()

/** A statement that gives no rows. */
export const voidStatement = sql.type(z.strictObject({}))

/** A statement that gives one row, `count`. */
export const countStatement = sql.type(z.strictObject({ count: z.int() }))

/** A statement that gives ids. */
export const idStatement = sql.type(z.strictObject({ id: z.string() }))

/** Anything statements can be sent through: the pool, one connection, or a transaction. */
export type Queryable = Pick<
  CommonQueryMethods,
  'any' | 'anyFirst' | 'exists' | 'many' | 'manyFirst' | 'maybeOne' | 'maybeOneFirst' | 'one' | 'oneFirst' | 'query'
>

export type Fragment = FragmentSqlToken

const anyRow = z.any()

/** A statement made elsewhere (pg-boss), with positional parameters. */
export const rawQuery = (text: string, values: unknown[] = []): QuerySqlToken =>
  Object.freeze({
    parser: anyRow,
    sql: text,
    type: 'SLONIK_TOKEN_QUERY',
    values: values as never,
  }) as unknown as QuerySqlToken

/** A piece of SQL made elsewhere (pg-boss), without parameters. */
export const rawFragment = (text: string): Fragment => Object.freeze({ ...sql.fragment``, sql: text })

/** `like` pattern of a case-insensitive substring search; `%`, `_` and `\` are literal. */
export const substring = (text: string): string => `%${text.replace(/[\\%_]/g, match => `\\${match}`)}%`

/** `like` pattern of a prefix search. */
export const prefix = (text: string): string => `${text.replace(/[\\%_]/g, match => `\\${match}`)}%`

/** Conditions joined by `and`; none is `true`. */
export const allOf = (conditions: (Fragment | null | undefined | false)[]): Fragment => {
  const present = conditions.filter(condition => !!condition) as Fragment[]
  return present.length === 0 ? sql.fragment`true` : sql.fragment`${sql.join(present, sql.fragment` and `)}`
}

/** Whether a text is one of some values; plain `=` for one, so that the planner sees the simplest form there is. */
export const equalsAny = (column: Fragment, values: readonly string[]): Fragment =>
  values.length === 1
    ? sql.fragment`${column} = ${values[0]}`
    : sql.fragment`${column} = any(${sql.array([...values], 'text')})`

/** A json value as a jsonb parameter; null stays SQL null. */
export const jsonb = (value: unknown): Fragment =>
  value === null || value === undefined ? sql.fragment`null::jsonb` : sql.fragment`${JSON.stringify(value)}::jsonb`

/**
 * Whether a statement failed because a row that it names, or a row that names it, came or went meanwhile.
 * @param column by which the row is named; default any
 */
export const isForeignKeyViolation = (error: unknown, column?: string): boolean =>
  error instanceof ForeignKeyIntegrityConstraintViolationError &&
  (column === undefined || (error.constraint ?? '').endsWith(`_${column}_fkey`))

/** Whether a statement failed because the project it writes for was deleted meanwhile. */
export const isProjectDeleted = (error: unknown): boolean => isForeignKeyViolation(error, 'project_id')
