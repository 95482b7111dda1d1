import { isObject, iteratesElements, listOf, operationOf } from './evaluate.ts'

/** One place of an expression that reads its root. */
export type RootRead = {
  /** Null for a path that is computed. */
  path: string | null
  by: 'var' | 'missing'
  /** Whether a value is given for what is not there. */
  defaulted: boolean
  /** Whether it is part of an operand of `<`, `<=`, `>` or `>=`. */
  ordered: boolean
}

const ORDERING = ['<', '<=', '>', '>=']

/** Every place where an expression reads its root, of whatever branch. */
export function rootReadsOf(expression: unknown): RootRead[] {
  const readings: RootRead[] = []
  collect(expression, false, readings)
  return readings
}

/** Into one list: to copy those of each level into the next costs more than to find them. */
function collect(expression: unknown, ordered: boolean, readings: RootRead[]): void {
  const operation = operationOf(expression)
  if (!operation) {
    if (typeof expression !== 'object' || expression === null) return
    for (const item of Object.values(expression)) collect(item, ordered, readings)
    return
  }
  const [name, given] = operation
  if (name === 'preserve') return
  const args = listOf(given)
  const add = (by: RootRead['by'], path: unknown, defaulted = false) =>
    readings.push({ path: pathOf(path), by, defaulted, ordered })
  if (name === 'var') add('var', args.length === 0 ? '' : args[0], args.length > 1)
  if (name === 'missing') for (const path of args.flatMap(listOf)) add('missing', path)
  if (name === 'missing_some') for (const path of args.slice(1).flatMap(listOf)) add('missing', path)
  // The second argument of these reads elements, not the root.
  const inside = iteratesElements(name) ? args.filter((_arg, index) => index !== 1) : args
  const isOrdering = ordered || ORDERING.includes(name)
  for (const item of inside) collect(item, isOrdering, readings)
}

/** A path as it is written; null, which is the whole root, is the empty one. */
function pathOf(value: unknown): string | null {
  if (value === null || value === undefined) return ''
  return typeof value === 'string' || typeof value === 'number' ? String(value) : null
}

/** The paths of the root that an expression names literally, each as often as it does. */
export const pathsOf = (expression: unknown): string[] => rootReadsOf(expression).flatMap(({ path }) => path ?? [])

/** The keys of objects that look like an operator and are none, wherever they would be evaluated. */
export function unknownOperators(expression: unknown): string[] {
  if (Array.isArray(expression)) return expression.flatMap(unknownOperators)
  if (!isObject(expression)) return []
  const operation = operationOf(expression)
  if (operation) return operation[0] === 'preserve' ? [] : unknownOperators(operation[1])
  const keys = Object.keys(expression)
  return [...(keys.length === 1 ? keys : []), ...Object.values(expression).flatMap(unknownOperators)]
}
