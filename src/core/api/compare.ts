import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { wirePath } from './validate.ts'

export const FieldChange = z
  .object({
    path: z.string(),
    op: z.enum(['added', 'removed', 'changed']).describe('What happened to the path'),
    before: z
      .unknown()
      .describe('Null for what was added; of entries whose order alone changed the list of their names'),
    after: z.unknown().describe('Null for what was removed'),
  })
  .meta({ id: 'Change' })
export type FieldChange = { path: string; op: 'added' | 'removed' | 'changed'; before: unknown; after: unknown }

/** The answer of every compare route. */
export const Comparison = z
  .object({ from: z.int(), to: z.int(), changes: z.array(FieldChange).describe('What differs, by path') })
  .meta({ id: 'Comparison' })

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
 *
 * A Map is an object the order of whose keys counts: where both sides have some in another order, it is `changed` from the
 * list of these keys to the same list in the new order.
 */
export const changesBetween = (before: unknown, after: unknown): FieldChange[] =>
  changesAt(before, after, [], { chars: MAX_PATH_CHARS })

function changesAt(
  before: unknown,
  after: unknown,
  path: readonly PropertyKey[],
  left: { chars: number },
): FieldChange[] {
  const keys = keysOf(before, after)
  if (keys) {
    const chars = path.reduce<number>((sum, key) => sum + String(key).length + 2, 8) * keys.length
    if (chars <= left.chars) {
      left.chars -= chars
      const changes = keys.flatMap(key => entryChanges(before as object, after as object, key, path, left))
      return before instanceof Map && after instanceof Map ? [...changes, ...reordered(before, after, path)] : changes
    }
  }
  if (isDeepStrictEqual(inOrder(before), inOrder(after))) return []
  return [{ path: wirePath(path), op: 'changed', before: plain(before), after: plain(after) }]
}

/** What two values are walked by; undefined where they are not walked. */
function keysOf(before: unknown, after: unknown): Key[] | undefined {
  if (isObject(before) && isObject(after))
    return [...namesOf(before), ...namesOf(after).filter(key => !hasEntry(before, key))]
  if (Array.isArray(before) && Array.isArray(after)) return [...Array(Math.max(before.length, after.length)).keys()]
}

type Key = string | number

const namesOf = (object: object): string[] => (object instanceof Map ? [...object.keys()] : Object.keys(object))

const hasEntry = (object: object, key: Key): boolean =>
  object instanceof Map ? object.has(key) : Object.hasOwn(object, key)

const entryOf = (object: object, key: Key): unknown =>
  object instanceof Map ? object.get(key) : (object as Record<Key, unknown>)[key]

function entryChanges(
  before: object,
  after: object,
  key: Key,
  path: readonly PropertyKey[],
  left: { chars: number },
): FieldChange[] {
  const at = [...path, key]
  const was = entryOf(before, key)
  const is = entryOf(after, key)
  if (!hasEntry(before, key)) return [{ path: wirePath(at), op: 'added', before: null, after: plain(is) }]
  if (!hasEntry(after, key)) return [{ path: wirePath(at), op: 'removed', before: plain(was), after: null }]
  return changesAt(was, is, at, left)
}

type Ordered = ReadonlyMap<unknown, unknown>

function reordered(before: Ordered, after: Ordered, path: readonly PropertyKey[]): FieldChange[] {
  const was = [...before.keys()].filter(key => after.has(key))
  const is = [...after.keys()].filter(key => before.has(key))
  return isDeepStrictEqual(was, is) ? [] : [{ path: wirePath(path), op: 'changed', before: was, after: is }]
}

/** A value with the Maps in it turned into something else. */
function withoutMaps(value: unknown, of: (entries: [string, unknown][]) => unknown): unknown {
  const inner = (entries: Iterable<[string, unknown]>): [string, unknown][] =>
    [...entries].map(([key, each]) => [key, withoutMaps(each, of)])
  if (value instanceof Map) return of(inner(value))
  if (Array.isArray(value)) return value.map(each => withoutMaps(each, of))
  return isObject(value) ? Object.fromEntries(inner(Object.entries(value))) : value
}

/** A value as JSON shows it. */
const plain = (value: unknown): unknown => withoutMaps(value, Object.fromEntries)

/** A value of which the order of Maps is a part when it is compared. */
const inOrder = (value: unknown): unknown => withoutMaps(value, entries => entries)
