import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { ExactNumber, isObject } from '../base/exact-json.ts'
import { wirePath } from './validate.ts'

export const FieldChange = z
  .object({
    path: z.string(),
    op: z.enum(['added', 'removed', 'changed']).describe('Kind of change'),
    before: z
      .unknown()
      .describe('Previous value. Null if the path was added; the list of keys if only their order changed'),
    after: z.unknown().describe('New value. Null if the path was removed'),
  })
  .meta({ id: 'Change' })
export type FieldChange = { path: string; op: 'added' | 'removed' | 'changed'; before: unknown; after: unknown }

/** The response of every compare operation. */
export const Comparison = z
  .object({ from: z.int(), to: z.int(), changes: z.array(FieldChange).describe('Differences by path') })
  .meta({ id: 'Comparison' })

/**
 * Limit on the total characters of the paths of one comparison. Each change repeats the names that lead to it: a long name
 * above a long array would turn one megabyte into gigabytes.
 */
const MAX_PATH_CHARS = 8 * 1024 * 1024

/**
 * Returns the differences between two JSON values, in the order of `before`, then of keys added by `after`. Objects are
 * compared by key, arrays by index. A key on one side only is `added` or `removed`, with null for the other side. Once the
 * paths reach MAX_PATH_CHARS, an object or array is reported as a single change.
 *
 * A Map is an object with significant key order: if common keys are in a different order, it is `changed` from the list of
 * these keys in the old order to the list in the new order.
 */
export const changesBetween = (before: unknown, after: unknown): FieldChange[] =>
  changesAt(before, after, [], { chars: MAX_PATH_CHARS })

function changesAt(
  before: unknown,
  after: unknown,
  path: readonly PropertyKey[],
  budget: { chars: number },
): FieldChange[] {
  const keys = keysOf(before, after)
  if (keys) {
    const chars = path.reduce<number>((sum, key) => sum + String(key).length + 2, 8) * keys.length
    if (chars <= budget.chars) {
      budget.chars -= chars
      const changes = keys.flatMap(key => entryChanges(before as object, after as object, key, path, budget))
      return before instanceof Map && after instanceof Map ? [...changes, ...reordered(before, after, path)] : changes
    }
  }
  if (isSame(before, after)) return []
  return [{ path: wirePath(path), op: 'changed', before: toPlain(before), after: toPlain(after) }]
}

/** Returns the keys or indexes by which two values are compared; undefined if they are compared as a whole. */
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
  budget: { chars: number },
): FieldChange[] {
  const at = [...path, key]
  const was = entryOf(before, key)
  const is = entryOf(after, key)
  if (!hasEntry(before, key)) return [{ path: wirePath(at), op: 'added', before: null, after: toPlain(is) }]
  if (!hasEntry(after, key)) return [{ path: wirePath(at), op: 'removed', before: toPlain(was), after: null }]
  return changesAt(was, is, at, budget)
}

type Ordered = ReadonlyMap<unknown, unknown>

function reordered(before: Ordered, after: Ordered, path: readonly PropertyKey[]): FieldChange[] {
  const was = [...before.keys()].filter(key => after.has(key))
  const is = [...after.keys()].filter(key => before.has(key))
  return isDeepStrictEqual(was, is) ? [] : [{ path: wirePath(path), op: 'changed', before: was, after: is }]
}

/** Returns a value with every Map and every exact number in it converted. */
function converted(
  value: unknown,
  of: (entries: [string, unknown][]) => unknown,
  numberOf: (exact: ExactNumber) => unknown = each => each,
): unknown {
  const inner = (entries: Iterable<[string, unknown]>): [string, unknown][] =>
    [...entries].map(([key, each]) => [key, converted(each, of, numberOf)])
  if (value instanceof Map) return of(inner(value))
  if (value instanceof ExactNumber) return numberOf(value)
  if (Array.isArray(value)) return value.map(each => converted(each, of, numberOf))
  return isObject(value) ? Object.fromEntries(inner(Object.entries(value))) : value
}

/** Converts Maps to objects. */
export const toPlain = (value: unknown): unknown => converted(value, Object.fromEntries)

/** Converts Maps to lists of entries, so that their order takes part in a comparison; numbers are compared by value. */
const toOrdered = (value: unknown): unknown =>
  converted(
    value,
    entries => entries,
    each => each.toNumber() ?? each,
  )

/** Converts exact numbers to texts, because a structured clone would make objects of them. */
export const toCloneable = (value: unknown): unknown => converted(value, entries => new Map(entries), String)

/** Whether `changesBetween` finds no difference. */
export const isSame = (left: unknown, right: unknown): boolean => isDeepStrictEqual(toOrdered(left), toOrdered(right))
