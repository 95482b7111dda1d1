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
 * Characters that the paths of one comparison may have together. Each change repeats the names that lead to it: a long name
 * over a long array would make gigabytes of one megabyte.
 */
const MAX_PATH_CHARS = 8 * 1024 * 1024

/**
 * What differs between two JSON values: objects are walked by key, arrays by position. A key that only one side has
 * is `added` or `removed`, its other side null. In the order of `before`, then of what `after` adds. Once the paths would
 * become too long together, an object or array is one change as a whole.
 */
export const changesBetween = (before: unknown, after: unknown): Change[] =>
  changesAt(before, after, [], { chars: MAX_PATH_CHARS })

function changesAt(before: unknown, after: unknown, path: readonly PropertyKey[], left: { chars: number }): Change[] {
  const keys = keysOf(before, after)
  if (keys) {
    const chars = path.reduce<number>((sum, key) => sum + String(key).length + 2, 8) * keys.length
    if (chars <= left.chars) {
      left.chars -= chars
      return keys.flatMap(key => entryChanges(before as object, after as object, key, path, left))
    }
  }
  if (isDeepStrictEqual(before, after)) return []
  return [{ path: wirePath(path), op: 'changed', before, after }]
}

/** What two values are walked by; undefined where they are not walked. */
function keysOf(before: unknown, after: unknown): (string | number)[] | undefined {
  if (isObject(before) && isObject(after))
    return [...Object.keys(before), ...Object.keys(after).filter(key => !Object.hasOwn(before, key))]
  if (Array.isArray(before) && Array.isArray(after)) return [...Array(Math.max(before.length, after.length)).keys()]
}

function entryChanges(
  before: object,
  after: object,
  key: string | number,
  path: readonly PropertyKey[],
  left: { chars: number },
): Change[] {
  const at = [...path, key]
  const was = (before as Record<string | number, unknown>)[key]
  const is = (after as Record<string | number, unknown>)[key]
  if (!Object.hasOwn(before, key)) return [{ path: wirePath(at), op: 'added', before: null, after: is }]
  if (!Object.hasOwn(after, key)) return [{ path: wirePath(at), op: 'removed', before: was, after: null }]
  return changesAt(was, is, at, left)
}
