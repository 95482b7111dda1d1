import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { wirePath } from './validate.ts'

export const Change = z
  .object({
    path: z.string(),
    op: z.enum(['added', 'removed', 'changed']),
    before: z.unknown(),
    after: z.unknown(),
  })
  .meta({ id: 'Change' })
export type Change = { path: string; op: 'added' | 'removed' | 'changed'; before: unknown; after: unknown }

/** The answer of every compare route. */
export const Comparison = z.object({ from: z.int(), to: z.int(), changes: z.array(Change) }).meta({ id: 'Comparison' })

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/**
 * What differs between two JSON values: objects are walked by key, arrays by position. A key that only one side has
 * is `added` or `removed`, its other side null. In the order of `before`, then of what `after` adds.
 */
export function changesBetween(before: unknown, after: unknown, path: readonly PropertyKey[] = []): Change[] {
  if (isObject(before) && isObject(after)) {
    const keys = [...Object.keys(before), ...Object.keys(after).filter(key => !Object.hasOwn(before, key))]
    return keys.flatMap(key => entryChanges(before, after, key, path))
  }
  if (Array.isArray(before) && Array.isArray(after))
    return Array.from({ length: Math.max(before.length, after.length) }, (_, index) => index).flatMap(index =>
      entryChanges(before, after, index, path),
    )
  if (isDeepStrictEqual(before, after)) return []
  return [{ path: wirePath(path), op: 'changed', before, after }]
}

function entryChanges(before: object, after: object, key: string | number, path: readonly PropertyKey[]): Change[] {
  const at = [...path, key]
  const was = (before as Record<string | number, unknown>)[key]
  const is = (after as Record<string | number, unknown>)[key]
  if (!Object.hasOwn(before, key)) return [{ path: wirePath(at), op: 'added', before: null, after: is }]
  if (!Object.hasOwn(after, key)) return [{ path: wirePath(at), op: 'removed', before: was, after: null }]
  return changesBetween(was, is, at)
}
