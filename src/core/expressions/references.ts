import { isObject } from '../base/exact-json.ts'
import { iteratesElements, listOf, operationOf, readPath } from './evaluate.ts'

/** A read of the root in an expression. */
export type RootRead = {
  /** Null for a computed path. */
  path: string | null
  by: 'var' | 'missing'
  /** Whether the read has a default for a missing value. */
  defaulted: boolean
  /** Whether the read is part of an operand of `<`, `<=`, `>` or `>=`. */
  ordered: boolean
}

const ORDERING = ['<', '<=', '>', '>=']

/** Lists all reads of the root in an expression, in every branch. */
export function rootReadsOf(expression: unknown): RootRead[] {
  const reads: RootRead[] = []
  collectReads(expression, false, reads)
  return reads
}

/** Appends to one list: copying a list per level costs more than the search. */
function collectReads(expression: unknown, ordered: boolean, reads: RootRead[]): void {
  const operation = operationOf(expression)
  if (!operation) {
    if (typeof expression !== 'object' || expression === null) return
    for (const item of Object.values(expression)) collectReads(item, ordered, reads)
    return
  }
  const [name, given] = operation
  if (name === 'preserve') return
  const args = listOf(given)
  const add = (by: RootRead['by'], path: unknown, defaulted = false) =>
    reads.push({ path: pathOf(path), by, defaulted, ordered })
  if (name === 'var') add('var', args.length === 0 ? '' : args[0], args.length > 1)
  if (name === 'missing') for (const path of args.flatMap(listOf)) add('missing', path)
  if (name === 'missing_some') for (const path of args.slice(1).flatMap(listOf)) add('missing', path)
  // The second argument of these operators reads elements, not the root.
  const rootArgs = iteratesElements(name) ? args.filter((_arg, index) => index !== 1) : args
  const isOrdering = ordered || ORDERING.includes(name)
  for (const item of rootArgs) collectReads(item, isOrdering, reads)
}

/** Returns a literal path, empty for null (the whole root). Null for a computed path. */
function pathOf(value: unknown): string | null {
  if (value === null || value === undefined) return ''
  return typeof value === 'string' || typeof value === 'number' ? String(value) : null
}

/** Lists the literal root paths of an expression, with duplicates. */
export const pathsOf = (expression: unknown): string[] => rootReadsOf(expression).flatMap(({ path }) => path ?? [])

/**
 * Returns a root of the values that expressions read, at the same paths: the same expressions have the same values with
 * it. The root itself if they read it as a whole or by computed paths.
 */
export function readPartOf(root: unknown, expressions: readonly unknown[]): unknown {
  const paths = rootReadsOf(expressions).map(({ path }) => path)
  if (!isObject(root) || paths.some(path => path === null || path === '')) return root
  // Without a prototype, a path such as `toString` finds nothing inherited.
  const part: Record<string, unknown> = Object.create(null)
  const whole = new Set<unknown>()
  // A path comes after the paths above it, whose values contain its value.
  for (const path of (paths as string[]).sort()) {
    const value = readPath(root, path)
    if (value === null) continue
    const segments = path.split('.')
    const last = segments.pop() as string
    let parent = part
    for (const segment of segments) {
      parent[segment] ??= Object.create(null)
      parent = parent[segment] as Record<string, unknown>
      if (whole.has(parent)) break
    }
    if (whole.has(parent)) continue
    parent[last] = value
    whole.add(value)
  }
  return part
}

/** Lists the keys of single-key objects that are not operators, at all places that are evaluated. */
export function unknownOperators(expression: unknown): string[] {
  const unknown: string[] = []
  collectUnknown(expression, unknown)
  return unknown
}

function collectUnknown(expression: unknown, unknown: string[]): void {
  const operation = operationOf(expression)
  if (operation) {
    if (operation[0] !== 'preserve') collectUnknown(operation[1], unknown)
    return
  }
  if (typeof expression !== 'object' || expression === null) return
  const keys = Object.keys(expression)
  if (isObject(expression) && keys.length === 1) unknown.push(keys[0])
  for (const item of Object.values(expression)) collectUnknown(item, unknown)
}
