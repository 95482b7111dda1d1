import type { z } from 'zod'
import { type Problem, raiseInvalid } from '../base/errors.ts'
import { ExactNumber, exactNumbersIn, isStorableDouble, isStorableNumber, withDoubles } from '../base/exact-json.ts'

/** Characters of a path: a key may have megabytes, and each of thousands of values below it has a path. */
const MAX_PATH_CHARS = 1_000

/** Formats a path: `['messages', 0, 'role']` as `messages[0].role`. Long paths are cut. */
export function wirePath(path: readonly PropertyKey[], prefix = ''): string {
  let out = prefix
  for (const part of path) {
    const name = typeof part === 'number' ? `[${part}]` : String(part).slice(0, MAX_PATH_CHARS)
    out += typeof part === 'number' || out === '' ? name : `.${name}`
    if (out.length > MAX_PATH_CHARS) return out.slice(0, MAX_PATH_CHARS)
  }
  return out
}

type Issue = z.core.$ZodIssue

/** Limit on the problems in a response: a body of 44 KB can have thousands. */
export const MAX_PROBLEMS = 100

const valueAt = (value: unknown, path: readonly PropertyKey[]): unknown =>
  path.reduce((node, key) => (node as Record<PropertyKey, unknown> | null | undefined)?.[key], value)

/** Issue codes that zod reports for a missing value, depending on the schema. */
const MISSING_VALUE_CODES: readonly string[] = ['invalid_type', 'invalid_value', 'invalid_union']

/** Converts zod issues to at most 100 problems; an unknown key has its own path. `value` is the parsed value. */
function problemsFromIssues(issues: readonly Issue[], value: unknown, prefix = ''): Problem[] {
  const problems = issues.slice(0, MAX_PROBLEMS).flatMap((issue): Problem[] => {
    if (issue.code === 'unrecognized_keys') {
      return issue.keys.slice(0, MAX_PROBLEMS).map(key => ({
        code: 'UNKNOWN_PROPERTY',
        path: wirePath([...issue.path, key], prefix),
        message: 'is not a known property',
      }))
    }
    const path = wirePath(issue.path, prefix)
    if (issue.code === 'custom')
      return [{ code: (issue.params?.code as string | undefined) ?? 'INVALID_VALUE', path, message: issue.message }]
    if (MISSING_VALUE_CODES.includes(issue.code) && valueAt(value, issue.path) === undefined)
      return [{ code: 'REQUIRED', path, message: 'is required' }]
    if (
      issue.code === 'invalid_type' &&
      issue.expected === 'number' &&
      valueAt(value, issue.path) instanceof ExactNumber
    )
      return [{ code: 'INVALID_NUMBER', path, message: 'has more digits than a number keeps' }]
    return [{ code: issue.code.toUpperCase(), path, message: issue.message }]
  })
  return problems.slice(0, MAX_PROBLEMS)
}

const TYPES: Record<string, string> = {
  array: 'an array',
  boolean: 'true or false',
  date: 'a time',
  int: 'an integer',
  null: 'null',
  number: 'a number',
  object: 'an object',
  record: 'an object',
  string: 'a string',
  tuple: 'an array',
}

const FORMATS: Record<string, string> = {
  base64: 'base64',
  date: 'an ISO 8601 date',
  datetime: 'an ISO 8601 time',
  email: 'an email address',
  url: 'a URL',
}

/** Unit of a length, by origin; numbers have none. */
const UNITS: Record<string, string> = { array: 'items', string: 'characters' }

type Bound = { origin: string; inclusive?: boolean; exact?: boolean }

/** Returns the message of a bound. `phrases`: wording for an inclusive and for an exclusive bound. */
function boundMessage(
  { origin, inclusive, exact }: Bound,
  bound: unknown,
  phrases: readonly [inclusive: string, exclusive: string],
): string {
  const unit = UNITS[origin]
  if (!unit) return `must be ${phrases[inclusive === false ? 1 : 0]} ${bound}`
  return `must have ${exact ? 'exactly' : phrases[0]} ${bound} ${bound === 1 ? unit.slice(0, -1) : unit}`
}

/** Messages by zod issue code; a message declared in the schema takes precedence. */
const messages: { [Code in Issue['code']]: (issue: Raw<Code>) => string } = {
  invalid_type: ({ expected }) => (expected === 'never' ? 'must be omitted' : `must be ${TYPES[expected] ?? expected}`),
  invalid_value: ({ values }) => `must be ${values.length === 1 ? '' : 'one of '}${values.map(String).join(', ')}`,
  too_small: issue =>
    issue.origin in UNITS && Number(issue.minimum) === 1 && !issue.exact
      ? 'must not be empty'
      : boundMessage(issue, issue.minimum, ['at least', 'greater than']),
  too_big: issue => boundMessage(issue, issue.maximum, ['at most', 'less than']),
  not_multiple_of: ({ divisor }) => `must be a multiple of ${divisor}`,
  invalid_format: ({ format, pattern }) =>
    format === 'regex' ? `must match ${pattern}` : `must be ${FORMATS[format] ?? `a valid ${format}`}`,
  invalid_key: ({ issues }) => `has an invalid key: ${issues[0].message}`,
  invalid_element: ({ issues }) => `has an invalid element: ${issues[0].message}`,
  invalid_union: issue =>
    'options' in issue && Array.isArray(issue.options)
      ? `must be one of ${issue.options.join(', ')}`
      : alternativesMessage(issue.errors ?? []),
  unrecognized_keys: () => 'is not a known property',
  custom: () => 'is not valid',
}

type Raw<Code extends Issue['code']> = Extract<z.core.$ZodRawIssue, { code: Code }>

/** Returns the requirements of several alternatives, with the path at which each failed. */
function alternativesMessage(alternatives: readonly Issue[][]): string {
  const requirements = alternatives.map(([{ path, message }]) =>
    path.length === 0 ? message : `${wirePath(path)} ${message}`,
  )
  return [...new Set(requirements)].join(', or ').replaceAll(', or must be ', ' or ') || 'is not valid'
}

const messageOf = (issue: z.core.$ZodRawIssue): string =>
  (messages[issue.code as Issue['code']] as (issue: unknown) => string)(issue)

/**
 * Parses a value with its schema. A number that the schema declares is a double; where any JSON is allowed, it keeps its
 * digits. So exact numbers that the schema refuses are replaced until it refuses others, or none.
 */
function safeParse<T>(
  schema: z.ZodType<T>,
  value: unknown,
): { data: T } | { issues: readonly Issue[]; value: unknown } {
  for (let parsed = value; ; ) {
    const result = schema.safeParse(parsed, { error: messageOf })
    if (result.success) {
      const issues = issuesOfLost(schema, parsed, result.data)
      return issues ? { issues, value: parsed } : { data: result.data }
    }
    const { issues } = result.error
    const refused = new Set(issues.flatMap(issue => exactNumbersOf(issue, parsed)))
    if (refused.size === 0) return { issues, value: parsed }
    parsed = withDoubles(parsed, each => (refused.has(each) ? plainOf(each) : each))
  }
}

/**
 * Returns the issues of a value whose exact numbers a schema of an object has accepted, because each is an object to zod;
 * null if there are none. Only numbers that the output lacks are concerned: they are parsed again as plain numbers.
 */
function issuesOfLost(schema: z.ZodType, value: unknown, output: unknown): readonly Issue[] | null {
  const lost = exactNumbersIn(value)
  if (lost.size === 0) return null
  for (const kept of exactNumbersIn(output)) lost.delete(kept)
  if (lost.size === 0) return null
  const plain = withDoubles(value, each => (lost.has(each) ? plainOf(each) : each))
  return schema.safeParse(plain, { error: messageOf }).error?.issues ?? null
}

/** Returns a number in place of an exact one; a fraction where an integer would be rounded, which no object accepts. */
const plainOf = (exact: ExactNumber): number => exact.toNearest() ?? 0.5

/**
 * Returns the exact numbers at the paths of an issue and of the issues within it, and those whose properties an issue
 * reports, because an exact number is an object to zod.
 */
function exactNumbersOf(issue: Issue, value: unknown): ExactNumber[] {
  const at = valueAt(value, issue.path)
  if (at instanceof ExactNumber) return at.toNearest() === null ? [] : [at]
  const parent = valueAt(value, issue.path.slice(0, -1))
  if (parent instanceof ExactNumber) return [parent]
  const inner =
    issue.code === 'invalid_union' ? issue.errors.flat() : issue.code === 'invalid_element' ? issue.issues : []
  return inner.flatMap(each => exactNumbersOf(each, at))
}

/** Returns at most 100 problems of a value according to its schema; none if it is valid. */
export function validationProblems(schema: z.ZodType, value: unknown, prefix = ''): Problem[] {
  const result = safeParse(schema, value)
  return 'data' in result ? [] : problemsFromIssues(result.issues, result.value, prefix)
}

/** Parses a value with its schema. Raises VALIDATION_FAILED with at most 100 problems. */
export function parse<T>(schema: z.ZodType<T>, value: unknown, prefix = ''): T {
  const result = safeParse(schema, value)
  return 'data' in result ? result.data : raiseInvalid(problemsFromIssues(result.issues, result.value, prefix))
}

const MAX_DEPTH = 64

/**
 * Returns the first value or key that cannot be stored, regardless of schemas: NUL characters, unpaired surrogates,
 * non-finite numbers, and nesting that would exhaust the stack. The path is built only for a problem: every body passes
 * here, and one of 4 MiB may have a million values.
 * @param accepts whether a double is accepted
 */
export function storabilityProblem(value: unknown, accepts = isStorableDouble): Problem | null {
  const found = findUnstorable(value, accepts, 0)
  if (found === null) return null
  const { code, message, path } = found
  return { code, message, path: code === 'TOO_DEEP' ? wirePath(path).slice(0, 200) : wirePath(path) }
}

type Unstorable = { code: string; message: string; path: (string | number)[] }

const unstorable = (code: string, message: string): Unstorable => ({ code, message, path: [] })

/** Recurses at most MAX_DEPTH levels; each level adds its part to the path of the problem. */
function findUnstorable(value: unknown, accepts: (double: number) => boolean, depth: number): Unstorable | null {
  if (typeof value === 'string')
    return isStorable(value) ? null : unstorable('INVALID_STRING', 'contains a NUL character or an unpaired surrogate')
  if (typeof value === 'number')
    return accepts(value) ? null : unstorable('INVALID_NUMBER', 'is outside the range of numbers')
  if (typeof value !== 'object' || value === null) return null
  if (value instanceof ExactNumber)
    return isStorableNumber(value)
      ? null
      : unstorable('INVALID_NUMBER', 'is outside the range of numbers, or has too many digits')
  if (depth >= MAX_DEPTH) return unstorable('TOO_DEEP', `is nested deeper than ${MAX_DEPTH} levels`)
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index++) {
      const found = findUnstorable(value[index], accepts, depth + 1)
      if (found) return within(index, found)
    }
    return null
  }
  for (const key of Object.keys(value)) {
    if (!isStorable(key))
      return unstorable('INVALID_STRING', 'contains a key with a NUL character or an unpaired surrogate')
    const found = findUnstorable((value as Record<string, unknown>)[key], accepts, depth + 1)
    if (found) return within(key, found)
  }
  return null
}

const within = (part: string | number, found: Unstorable): Unstorable => ({ ...found, path: [part, ...found.path] })

/** Whether PostgreSQL can store a string. */
export const isStorable = (text: string): boolean => !text.includes('\0') && text.isWellFormed()
