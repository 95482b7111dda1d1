import { isObject, isOverElements, listOf, operationOf } from './evaluate.ts'

/** One place of an expression that reads its root. */
export type Reading = {
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
export function readingsOf(expression: unknown, ordered = false): Reading[] {
  const operation = operationOf(expression)
  if (!operation) {
    if (typeof expression !== 'object' || expression === null) return []
    return Object.values(expression).flatMap(item => readingsOf(item, ordered))
  }
  const [name, given] = operation
  if (name === 'preserve') return []
  const args = listOf(given)
  const inside = (items: readonly unknown[]) =>
    items.flatMap(item => readingsOf(item, ordered || ORDERING.includes(name)))
  const reading = (by: Reading['by'], path: unknown, defaulted = false): Reading => ({
    path: pathOf(path),
    by,
    defaulted,
    ordered,
  })
  if (name === 'var') return [reading('var', args.length === 0 ? '' : args[0], args.length > 1), ...inside(args)]
  if (name === 'missing') return [...args.flatMap(listOf).map(path => reading('missing', path)), ...inside(args)]
  if (name === 'missing_some')
    return [
      ...args
        .slice(1)
        .flatMap(listOf)
        .map(path => reading('missing', path)),
      ...inside(args),
    ]
  // The second argument of these reads elements, not the root.
  return inside(isOverElements(name) ? args.filter((_arg, index) => index !== 1) : args)
}

/** A path as it is written; null, which is the whole root, is the empty one. */
function pathOf(value: unknown): string | null {
  if (value === null || value === undefined) return ''
  return typeof value === 'string' || typeof value === 'number' ? String(value) : null
}

/** The paths of the root that an expression names literally, each as often as it does. */
export const pathsOf = (expression: unknown): string[] => readingsOf(expression).flatMap(({ path }) => path ?? [])

/** The keys of objects that look like an operator and are none, wherever they would be evaluated. */
export function unknownOperators(expression: unknown): string[] {
  if (Array.isArray(expression)) return expression.flatMap(unknownOperators)
  if (!isObject(expression)) return []
  const operation = operationOf(expression)
  if (operation) return operation[0] === 'preserve' ? [] : unknownOperators(operation[1])
  const keys = Object.keys(expression)
  return [...(keys.length === 1 ? keys : []), ...Object.values(expression).flatMap(unknownOperators)]
}
