import type { z } from 'zod'
import { invalid, type Problem } from './errors.ts'

/** `['messages', 0, 'role']` becomes `messages[0].role`. */
export function wirePath(path: readonly PropertyKey[], prefix = ''): string {
  let out = prefix
  for (const part of path)
    out += typeof part === 'number' ? `[${part}]` : out === '' ? String(part) : `.${String(part)}`
  return out
}

type Issue = z.core.$ZodIssue

const absentAt = (value: unknown, path: readonly PropertyKey[]): boolean =>
  path.reduce((node, key) => (node as Record<PropertyKey, unknown> | null | undefined)?.[key], value) === undefined

/** What zod reports for a value that is not there, depending on what should be there. */
const OF_ABSENT: readonly string[] = ['invalid_type', 'invalid_value', 'invalid_union']

/** A zod error as the wire's problems; a refused key is named by its own path. `value` is what was parsed. */
export function problemsOf(issues: readonly Issue[], value: unknown, prefix = ''): Problem[] {
  return issues.flatMap((issue): Problem[] => {
    if (issue.code === 'unrecognized_keys') {
      return issue.keys.map(key => ({
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
}

/** Parses a value with its schema; raises VALIDATION_FAILED with every problem. */
export function parse<T>(schema: z.ZodType<T>, value: unknown, prefix = ''): T {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  return invalid(problemsOf(result.error.issues, value, prefix))
}

const MAX_DEPTH = 64

/**
 * What no schema says and the database cannot hold: NUL characters and half surrogate pairs in any string or key,
 * and nesting that would exhaust the stack. Walks without recursion.
 */
export function checkStorable(value: unknown): Problem | null {
  const stack: { value: unknown; path: string; depth: number }[] = [{ value, path: '', depth: 0 }]
  while (stack.length > 0) {
    const item = stack.pop() as { value: unknown; path: string; depth: number }
    if (typeof item.value === 'string') {
      if (!storable(item.value))
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
          if (!storable(key))
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
export const storable = (text: string): boolean => !text.includes('\0') && text.isWellFormed()
