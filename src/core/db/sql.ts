import {
  type CommonQueryMethods,
  createSqlTag,
  ForeignKeyIntegrityConstraintViolationError,
  type FragmentSqlToken,
  type QuerySqlToken,
} from 'slonik'
import { z } from 'zod'

export const sql = createSqlTag()

/** A statement that returns no rows. */
export const voidStatement = sql.type(z.strictObject({}))

/** A statement that returns rows with an integer `count`. */
export const countStatement = sql.type(z.strictObject({ count: z.int() }))

/** A statement that returns rows with an `id`. */
export const idStatement = sql.type(z.strictObject({ id: z.string() }))

/** Executes statements: the pool, a connection or a transaction. */
export type Queryable = Pick<
  CommonQueryMethods,
  'any' | 'anyFirst' | 'exists' | 'many' | 'manyFirst' | 'maybeOne' | 'maybeOneFirst' | 'one' | 'oneFirst' | 'query'
>

export type Fragment = FragmentSqlToken

const anyRow = z.any()

/** Wraps a statement built by pg-boss, with positional parameters. */
export const rawQuery = (text: string, values: unknown[] = []): QuerySqlToken =>
  Object.freeze({
    parser: anyRow,
    sql: text,
    type: 'SLONIK_TOKEN_QUERY',
    values: values as never,
  }) as unknown as QuerySqlToken

/** Wraps a fragment built by pg-boss, without parameters. */
export const rawFragment = (text: string): Fragment => Object.freeze({ ...sql.fragment``, sql: text })

/** Returns an expression for a time as ISO text, which the driver returns for columns, for use in JSON. */
export const isoTime = (column: Fragment): Fragment =>
  sql.fragment`to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`

/** Returns the text of a fragment without values, for a statement that Slonik does not send. */
export function fragmentText({ sql: text, values }: Fragment): string {
  if (values.length > 0) throw new Error(`fragment with values: ${text}`)
  return text
}

/** Returns a row from json or jsonb, with its times in the format of other rows. */
export const rowFromJson = <Row extends object>(json: Row): Row =>
  Object.fromEntries(
    Object.entries(json).map(([name, value]) => [
      name,
      name.endsWith('_at') && value !== null ? new Date(value).toISOString() : value,
    ]),
  ) as Row

/** Returns the `like` pattern of a substring search; `%`, `_` and `\` are literal. */
export const substring = (text: string): string => `%${text.replace(/[\\%_]/g, match => `\\${match}`)}%`

/** Returns the `like` pattern of a prefix search; `%`, `_` and `\` are literal. */
export const prefix = (text: string): string => `${text.replace(/[\\%_]/g, match => `\\${match}`)}%`

/** Joins conditions by `and`; without any the result is `true`. */
export const allOf = (conditions: (Fragment | null | undefined | false)[]): Fragment => {
  const present = conditions.filter(condition => !!condition) as Fragment[]
  return present.length === 0 ? sql.fragment`true` : sql.fragment`${sql.join(present, sql.fragment` and `)}`
}

/** Builds `column = any(values)`, or a plain `=` for a single value, which the planner estimates better. */
export const equalsAny = (column: Fragment, values: readonly string[]): Fragment =>
  values.length === 1
    ? sql.fragment`${column} = ${values[0]}`
    : sql.fragment`${column} = any(${sql.array([...values], 'text')})`

/** Builds a jsonb parameter; null and undefined become SQL null. */
export const jsonb = (value: unknown): Fragment =>
  value === null || value === undefined ? sql.fragment`null::jsonb` : sql.fragment`${JSON.stringify(value)}::jsonb`

/**
 * Whether a statement failed because a referenced row was deleted, or a referencing row inserted, concurrently.
 * @param column the referencing column, default any
 */
export const isForeignKeyViolation = (error: unknown, column?: string): boolean =>
  error instanceof ForeignKeyIntegrityConstraintViolationError &&
  (column === undefined || (error.constraint ?? '').endsWith(`_${column}_fkey`))

/** Whether a statement failed because its project was deleted concurrently. */
export const isProjectDeleted = (error: unknown): boolean => isForeignKeyViolation(error, 'project_id')
