import type { z } from 'zod'
import { type Problem, raiseInvalid } from './errors.ts'

/** `['messages', 0, 'role']` becomes `messages[0].role`. */
export function wirePath(path: readonly PropertyKey[], prefix = ''): string {
  let out = prefix
  for (const part of path)
    out += typeof part === 'number' ? `[${part}]` : out === '' ? String(part) : `.${String(part)}`
  return out
}

type Issue = z.core.$ZodIssue

/** Problems that an answer lists: a body of 44 KB can have thousands. */
const MAX_PROBLEMS = 100

const absentAt = (value: unknown, path: readonly PropertyKey[]): boolean =>
  path.reduce((node, key) => (node as Record<PropertyKey, unknown> | null | undefined)?.[key], value) === undefined

/** What zod reports for a value that is not there, depending on what should be there. */
const OF_ABSENT: readonly string[] = ['invalid_type', 'invalid_value', 'invalid_union']

/** A zod error as the wire's problems, at most 100; a refused key is named by its own path. `value` is what was parsed. */
export function problemsFromIssues(issues: readonly Issue[], value: unknown, prefix = ''): Problem[] {
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
    if (OF_ABSENT.includes(issue.code) && absentAt(value, issue.path))
      return [{ code: 'REQUIRED', path, message: 'is required' }]
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

/** What a length is counted in; a number has none. */
const UNITS: Record<string, string> = { array: 'items', string: 'characters' }

type Bound = { origin: string; inclusive?: boolean; exact?: boolean }

/** `phrases`: how a number that is bounded is described, inclusive and exclusive, and how a length is. */
function bounded({ origin, inclusive, exact }: Bound, bound: unknown, [at, beyond]: readonly [string, string]): string {
  const unit = UNITS[origin]
  if (!unit) return `must be ${inclusive === false ? beyond : at} ${bound}`
  return `must have ${exact ? 'exactly' : at} ${bound} ${bound === 1 ? unit.slice(0, -1) : unit}`
}

/** Messages for what zod refuses; a schema's own message takes precedence. */
const wordings: { [Code in Issue['code']]: (issue: Raw<Code>) => string } = {
  invalid_type: ({ expected }) =>
    expected === 'never' ? 'must be left out' : `must be ${TYPES[expected] ?? expected}`,
  invalid_value: ({ values }) => `must be ${values.length === 1 ? '' : 'one of '}${values.map(String).join(', ')}`,
  too_small: issue =>
    issue.origin in UNITS && Number(issue.minimum) === 1 && !issue.exact
      ? 'must not be empty'
      : bounded(issue, issue.minimum, ['at least', 'greater than']),
  too_big: issue => bounded(issue, issue.maximum, ['at most', 'less than']),
  not_multiple_of: ({ divisor }) => `must be a multiple of ${divisor}`,
  invalid_format: ({ format, pattern }) =>
    format === 'regex' ? `must match ${pattern}` : `must be ${FORMATS[format] ?? `a valid ${format}`}`,
  invalid_key: ({ issues }) => `is a key and ${issues[0].message}`,
  invalid_element: ({ issues }) => `is an element and ${issues[0].message}`,
  invalid_union: issue =>
    'options' in issue && Array.isArray(issue.options)
      ? `must be one of ${issue.options.join(', ')}`
      : wordsOfForms(issue.errors ?? []),
  unrecognized_keys: () => 'is not a known property',
  custom: () => 'is not valid',
}

type Raw<Code extends Issue['code']> = Extract<z.core.$ZodRawIssue, { code: Code }>

/** What each of several forms wanted, with where it found something else. */
function wordsOfForms(forms: readonly Issue[][]): string {
  const wanted = forms.map(([{ path, message }]) => (path.length === 0 ? message : `${wirePath(path)} ${message}`))
  return [...new Set(wanted)].join(', or ').replaceAll(', or must be ', ' or ') || 'is not valid'
}

const wordsOf = (issue: z.core.$ZodRawIssue): string =>
  (wordings[issue.code as Issue['code']] as (issue: unknown) => string)(issue)

/** What is wrong with a value by its schema, at most 100 problems; nothing when it fits. */
export function validationProblems(schema: z.ZodType, value: unknown, prefix = ''): Problem[] {
  const result = schema.safeParse(value, { error: wordsOf })
  return result.success ? [] : problemsFromIssues(result.error.issues, value, prefix)
}

/** Parses a value with its schema; raises VALIDATION_FAILED with every problem. */
export function parse<T>(schema: z.ZodType<T>, value: unknown, prefix = ''): T {
  const result = schema.safeParse(value, { error: wordsOf })
  if (result.success) return result.data
  return raiseInvalid(problemsFromIssues(result.error.issues, value, prefix))
}

const MAX_DEPTH = 64

/**
 * What no schema says and the database cannot hold: NUL characters and half surrogate pairs in any string or key,
 * and nesting that would exhaust the stack. Walks without recursion.
 */
export function storabilityProblem(value: unknown): Problem | null {
  const stack: { value: unknown; path: string; depth: number }[] = [{ value, path: '', depth: 0 }]
  while (stack.length > 0) {
    const item = stack.pop() as { value: unknown; path: string; depth: number }
    if (typeof item.value === 'string') {
      if (!isStorable(item.value))
        return { code: 'INVALID_STRING', path: item.path, message: 'holds a NUL character or half a surrogate pair' }
    } else if (typeof item.value === 'number') {
      if (!Number.isFinite(item.value))
        return { code: 'INVALID_NUMBER', path: item.path, message: 'is beyond the range of a number' }
    } else if (typeof item.value === 'object' && item.value !== null) {
      if (item.depth >= MAX_DEPTH)
        return { code: 'TOO_DEEP', path: item.path.slice(0, 200), message: `is nested deeper than ${MAX_DEPTH} levels` }
      if (Array.isArray(item.value)) {
        for (let index = 0; index < item.value.length; index++)
          stack.push({ value: item.value[index], path: `${item.path}[${index}]`, depth: item.depth + 1 })
      } else {
        for (const key of Object.keys(item.value)) {
          if (!isStorable(key))
            return {
              code: 'INVALID_STRING',
              path: item.path,
              message: 'holds a key with a NUL character or half a surrogate pair',
            }
          stack.push({
            value: (item.value as Record<string, unknown>)[key],
            path: item.path === '' ? key : `${item.path}.${key}`,
            depth: item.depth + 1,
          })
        }
      }
    }
  }
  return null
}

/** Whether PostgreSQL can hold a string. */
export const isStorable = (text: string): boolean => !text.includes('\0') && text.isWellFormed()
