import { z } from 'zod'
import { storabilityProblem } from '#core/api/validate.ts'
import { raise } from '#core/base/errors.ts'
import { ExactNumber, isObject, parseExactJson } from '#core/base/exact-json.ts'
import { allOf, type Fragment, jsonb, sql } from '#core/db/sql.ts'

const MAX_FIELDS = 20
const MAX_VALUES = 100
const COMPARISONS = { gt: sql.fragment`>`, gte: sql.fragment`>=`, lt: sql.fragment`<`, lte: sql.fragment`<=` }
type Comparison = keyof typeof COMPARISONS

export type MetadataTest =
  | { field: string; operator: 'in'; values: unknown[] }
  | { field: string; operator: Comparison; value: number | ExactNumber | string }
export type MetadataFilter = MetadataTest[]

/** Raises VALIDATION_FAILED with the field in `meta.field`. */
function refuse(message: string, field?: string): never {
  const path = field === undefined ? 'metadata' : `metadata.${field}`
  return raise('VALIDATION_FAILED', {
    message: `${path}: ${message}`,
    meta: { ...(field === undefined ? {} : { field }), problems: [{ code: 'INVALID_VALUE', path, message }] },
  })
}

/**
 * Parses the metadata filter of lists and searches. Raises VALIDATION_FAILED with the invalid field in `meta.field`.
 */
function parseFilter(filter: unknown): MetadataFilter {
  if (!isObject(filter)) return refuse('must be a JSON object')
  const fields = Object.entries(filter)
  if (fields.length > MAX_FIELDS) refuse(`must have at most ${MAX_FIELDS} fields`, fields[MAX_FIELDS][0])
  return fields.flatMap(([field, value]) =>
    isObject(value) ? parseOperators(field, value) : [{ field, operator: 'in' as const, values: [value] }],
  )
}

function parseOperators(field: string, operators: Record<string, unknown>): MetadataFilter {
  const entries = Object.entries(operators)
  if (entries.length === 0) refuse('must have an operator: in, gt, gte, lt or lte', field)
  return entries.map(([operator, value]): MetadataTest => {
    if (operator === 'in') {
      if (!Array.isArray(value) || value.length === 0 || value.length > MAX_VALUES)
        refuse(`operator in requires an array of 1 to ${MAX_VALUES} values`, field)
      return { field, operator, values: value as unknown[] }
    }
    if (!Object.hasOwn(COMPARISONS, operator))
      refuse('has an unknown operator; allowed are in, gt, gte, lt and lte', field)
    if (typeof value !== 'number' && typeof value !== 'string' && !(value instanceof ExactNumber))
      refuse(`operator ${operator} requires a number or a string`, field)
    return { field, operator: operator as Comparison, value }
  })
}

/** The filter as a field of a JSON body. Raises errors instead of reporting issues, because they carry `meta.field`. */
export const MetadataFilter = z.unknown().transform(parseFilter).meta({
  type: 'object',
  description: 'Values or operators { in | gt | gte | lt | lte } by metadata field; all fields must match',
})

/** The filter as a query parameter: JSON text. */
export const metadataQuery = z
  .string()
  .transform(text => {
    let filter: unknown
    try {
      // Query strings are short; storabilityProblem checks the depth and returns the field.
      filter = parseExactJson(text)
    } catch {
      return refuse('must be JSON')
    }
    const problem = storabilityProblem(filter, Number.isFinite)
    if (problem) refuse(problem.message, problem.path.split('.')[0] || undefined)
    return parseFilter(filter)
  })
  .meta({ type: 'string', description: 'Metadata filter as JSON text' })

/**
 * SQL condition for a filter over a jsonb column. A gin index on the column (jsonb_path_ops) serves equality and `in`.
 * Containment also matches a part of an array, so the values are compared too.
 */
export const metadataCondition = (column: Fragment, filter: MetadataFilter): Fragment =>
  allOf(
    filter.map(test => (test.operator === 'in' ? isOneOf(column, test.field, test.values) : compares(column, test))),
  )

function isOneOf(column: Fragment, field: string, values: unknown[]): Fragment {
  const contained = values.map(value => sql.fragment`${column} @> ${jsonb({ [field]: value })}`)
  const exact = sql.array(
    values.map(value => JSON.stringify(value)),
    'jsonb',
  )
  return sql.fragment`((${sql.join(contained, sql.fragment` or `)}) and ${column} -> ${field}::text = any(${exact}))`
}

/** Compares numbers by value and strings by code point; fields of another type do not match. */
function compares(column: Fragment, { field, operator, value }: Exclude<MetadataTest, { operator: 'in' }>): Fragment {
  const is = COMPARISONS[operator]
  const stored = sql.fragment`(${column} ->> ${field}::text)`
  return typeof value !== 'string'
    ? sql.fragment`case when jsonb_typeof(${column} -> ${field}::text) = 'number' then ${stored}::numeric ${is} ${JSON.stringify(value)}::numeric else false end`
    : sql.fragment`case when jsonb_typeof(${column} -> ${field}::text) = 'string' then ${stored} collate "C" ${is} ${value} else false end`
}
