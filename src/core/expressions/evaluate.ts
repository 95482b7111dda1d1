/**
 * JSON Logic: the expressions that callers write where the platform maps values. Evaluation is total, deterministic and
 * bounded: it reads nothing but its root, and what it may cost is counted, because it runs on the event loop.
 */

import { holdsText } from '../api/storable-text.ts'

/** An expression, or its result, is beyond what one may cost. */
export class ExpressionError extends Error {}

const MAX_BYTES = 64 * 1024
const MAX_NESTING = 100
const MAX_APPLICATIONS = 100_000
const MAX_RESULT_BYTES = 10 * 1024 * 1024
/** Values of a result: what is shared in it is written out each time. */
const MAX_RESULT_VALUES = 200_000
/** Levels of a result: more than an expression and a value that it reads have together. */
const MAX_RESULT_NESTING = 200
/** Characters and elements that all operators read and make together: less than a tenth of a second. */
const MAX_VOLUME = 16 * 1024 * 1024
/** Comparisons of a search in a text that count as one character. */
const SEARCH_STEPS = 16
/** What the search for a long part counts a character of the text. */
const MAX_SEARCH_COST = 4
/** What an element that is moved to a new array counts, in characters. */
const MOVED = 32

type Data = unknown
type Operator = (run: Evaluation, args: readonly unknown[], data: Data) => unknown

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** The operator of an expression and what it is applied to; null for a literal. */
export function operationOf(value: unknown): [string, unknown] | null {
  if (!isObject(value)) return null
  const keys = Object.keys(value)
  return keys.length === 1 && Object.hasOwn(OPERATORS, keys[0]) ? [keys[0], value[keys[0]]] : null
}

/** The arguments of an operator; a single one needs no list. */
export const listOf = (args: unknown): readonly unknown[] => (Array.isArray(args) ? args : [args])

/** Why a value cannot be kept as an expression; null when it can. */
export function expressionProblem(expression: unknown): string | null {
  if (Buffer.byteLength(JSON.stringify(expression)) > MAX_BYTES) return 'must be at most 64 KiB'
  return nestsDeeper(expression, MAX_NESTING) ? `is nested deeper than ${MAX_NESTING} levels` : null
}

const nestsDeeper = (value: unknown, levels: number): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (levels === 0 || Object.values(value).some(item => nestsDeeper(item, levels - 1)))

/**
 * The value of an expression over a root, or of a literal with expressions in it: JSON that shares nothing with the root.
 * @param spent what other expressions of the same work have cost, which counts
 * @param strictness what becomes of values that are absent or of another type than an operator takes
 * @throws ExpressionError when it costs too much or its result is too large
 */
export function evaluate(
  expression: unknown,
  root: unknown,
  spent: EvaluationBudget = freshBudget(),
  strictness: Strictness = 'coercing',
): unknown {
  const result = copied(new Evaluation(spent, strictness).value(expression, root))
  spent.volume += result.values
  return result.copy
}

/**
 * What becomes of a value that an operator cannot use as it is. `coercing`: it is converted, as JavaScript does it. `typed`: the
 * evaluation fails, so that nothing that is absent, empty or of another type passes for zero or for a text. `present`: it
 * also fails where a path without a default is read that has no value.
 */
export type Strictness = 'coercing' | 'typed' | 'present'

/** What evaluations have cost, where several share one budget. */
export type EvaluationBudget = { applications: number; volume: number }

export const freshBudget = (): EvaluationBudget => ({ applications: 0, volume: 0 })

/** A budget of which but a share is left, for expressions that are evaluated thousands of times together. */
export const reducedBudget = (left: number): EvaluationBudget => ({
  applications: Math.floor(MAX_APPLICATIONS * (1 - left)),
  volume: Math.floor(MAX_VOLUME * (1 - left)),
})

/** An evaluation and what it has spent. */
class Evaluation {
  readonly #spent: EvaluationBudget
  readonly #strictness: Strictness

  constructor(spent: EvaluationBudget, strictness: Strictness) {
    this.#spent = spent
    this.#strictness = strictness
  }

  /** Fails a strict evaluation where a value is none that an operator takes. */
  expect(usable: boolean, what: string): void {
    if (!usable && this.#strictness !== 'coercing') throw new ExpressionError(`${what}, or has another type`)
  }

  /** What a path without a default reads. */
  found(value: unknown): unknown {
    if (value === null && this.#strictness === 'present') throw new ExpressionError('reads a value that is missing')
    return value
  }

  /** Counts characters or elements that are about to be read or made. */
  spend(volume: number): void {
    this.#spent.volume += volume
    if (this.#spent.volume > MAX_VOLUME) throw new ExpressionError('takes too long to evaluate')
  }

  value(expression: unknown, data: Data): unknown {
    this.spend(1)
    const operation = operationOf(expression)
    if (operation) {
      if (++this.#spent.applications > MAX_APPLICATIONS) throw new ExpressionError('applies too many operators')
      const [name, given] = operation
      return OPERATORS[name](this, name === 'preserve' ? [given] : listOf(given), data) ?? null
    }
    if (Array.isArray(expression)) return expression.map(item => this.value(item, data))
    if (!isObject(expression)) return expression ?? null
    return Object.fromEntries(Object.entries(expression).map(([key, item]) => [key, this.value(item, data)]))
  }

  values(args: readonly unknown[], data: Data): unknown[] {
    return args.map(arg => this.value(arg, data))
  }

  /** Calls back for each element of the array that the first argument gives, or not at all. */
  each(args: readonly unknown[], data: Data): unknown[] {
    const list = this.value(args[0], data)
    this.expect(Array.isArray(list), 'goes through a list that is missing')
    if (!Array.isArray(list)) return []
    this.spend(list.length)
    return list
  }

  /** What JavaScript makes of a value where it wants a primitive; never code of the value's own. */
  primitive(value: unknown): string | number | boolean | null {
    if (Array.isArray(value)) return this.text(value)
    if (typeof value === 'object' && value !== null) return '[object Object]'
    return value as string | number | boolean | null
  }

  /** A value as text; null is empty. */
  text(value: unknown, levels = MAX_RESULT_NESTING): string {
    this.expect(isScalar(value), 'makes a text of a value that is missing')
    if (Array.isArray(value)) {
      if (levels === 0) throw new ExpressionError(`makes a text of more than ${MAX_RESULT_NESTING} levels`)
      this.spend(value.length)
      return value.map(item => this.text(item, levels - 1)).join(',')
    }
    const text = value === null || value === undefined ? '' : String(this.primitive(value))
    this.spend(text.length)
    return text
  }

  number(value: unknown): number {
    this.expect(isNumber(value), 'calculates with a number that is missing')
    const primitive = this.primitive(value)
    if (typeof primitive === 'string') this.spend(primitive.length)
    return Number(primitive)
  }

  equal(left: unknown, right: unknown): boolean {
    if (typeof left === 'string' && typeof right === 'string') this.spend(Math.min(left.length, right.length))
    return left === right
  }

  /** `==` of JavaScript. */
  alike(left: unknown, right: unknown): boolean {
    if (left === null || right === null) return left === right
    this.expect(isScalar(left) && typeof left === typeof right, 'compares with a value that is missing')
    if (typeof left === 'object' && typeof right === 'object') return left === right
    const [one, other] = [this.primitive(left), this.primitive(right)]
    if (typeof one === typeof other) return this.equal(one, other)
    return this.number(one) === this.number(other)
  }

  /** Whether each operand stands before the next; two or three are compared. */
  ordered(args: readonly unknown[], data: Data, holds: (left: any, right: any) => boolean): boolean {
    const values = this.values(args.slice(0, 3), data)
    if (values.length < 2) values.push(null)
    this.expect(values.every(isNumber) || values.every(isText), 'compares with a value that is missing')
    const operands = values.map(value => this.primitive(value))
    return operands.slice(1).every((right, index) => {
      const left = operands[index]
      if (typeof left === 'string' && typeof right === 'string') this.spend(Math.min(left.length, right.length))
      return holds(left, right)
    })
  }
}

const isScalar = (value: unknown): boolean => ['string', 'number', 'boolean'].includes(typeof value)

const isNumber = (value: unknown): boolean => Number.isFinite(value)

/** An empty text is as good as none. */
const isText = (value: unknown): boolean => typeof value === 'string' && value !== ''

/** Whether a value counts as true. */
export const truthy = (value: unknown): boolean => (Array.isArray(value) ? value.length > 0 : Boolean(value))

const HIDDEN = ['__proto__', 'prototype', 'constructor']

/** A name that no path can read. */
export const isReservedName = (name: string): boolean => HIDDEN.includes(name)

/** What stands at a dotted path; null when something on the way is missing. */
export function readPath(root: unknown, path: string): unknown {
  if (path === '') return root
  let found = root
  for (const segment of path.split('.')) {
    if (typeof found !== 'object' || found === null || isReservedName(segment) || !Object.hasOwn(found, segment))
      return null
    found = (found as Record<string, unknown>)[segment]
  }
  return found ?? null
}

function pathAt(run: Evaluation, value: unknown): string {
  const path = run.text(value)
  run.spend(path.length)
  return path
}

function conditional(run: Evaluation, args: readonly unknown[], data: Data): unknown {
  for (let index = 0; index + 1 < args.length; index += 2)
    if (truthy(run.value(args[index], data))) return run.value(args[index + 1], data)
  return args.length % 2 === 1 ? run.value(args[args.length - 1], data) : null
}

/** The first value that is decisive, or else the last. */
function firstThat(decisive: (value: unknown) => boolean): Operator {
  return (run, args, data) => {
    let value: unknown = null
    for (const arg of args) {
      value = run.value(arg, data)
      if (decisive(value)) return value
    }
    return value
  }
}

function missing(run: Evaluation, keys: readonly unknown[], data: Data): unknown[] {
  run.spend(keys.length)
  return keys.filter(key => {
    const value = readPath(data, pathAt(run, key))
    return value === null || value === ''
  })
}

function contains(run: Evaluation, needle: unknown, hay: unknown): boolean {
  run.expect(typeof hay === 'string' ? isText(needle) : Array.isArray(hay), 'searches in a value that is missing')
  if (typeof hay === 'string') {
    const part = run.text(needle)
    run.spend(hay.length * (1 + Math.min(part.length / SEARCH_STEPS, MAX_SEARCH_COST)) + part.length)
    return holdsText(hay, part)
  }
  if (!Array.isArray(hay)) return false
  run.spend(hay.length)
  const found = hay.some(item => run.equal(item, needle))
  // Nothing in the list could have been equal to what has another type than all of it.
  const comparable = found || needle === null || hay.length === 0 || hay.some(item => typeof item === typeof needle)
  run.expect(comparable && (found || needle === null || isScalar(needle)), 'searches for a value that is missing')
  return found
}

/** Part of a text: from `start`, or so far from the end; `length` characters, or all but so many at the end. */
function part(text: string, start: number, length: number | null): string {
  const from = start < 0 ? Math.max(0, text.length + start) : start
  if (length === null) return text.slice(from)
  return length < 0 ? text.slice(from, Math.max(from, text.length + length)) : text.slice(from, from + length)
}

const whole = (value: number): number => Math.trunc(value) || 0

const folded =
  (fold: (left: number, right: number) => number, first: number): Operator =>
  (run, args, data) =>
    run.values(args, data).reduce<number>((sum, value) => fold(sum, run.number(value)), first)

/** Operators whose second argument is evaluated with an element as its root. */
const OVER_ELEMENTS: Record<string, Operator> = {
  map: (run, args, data) => run.each(args, data).map(item => run.value(args[1], item)),
  filter: (run, args, data) => run.each(args, data).filter(item => truthy(run.value(args[1], item))),
  reduce(run, args, data) {
    const first = args.length > 2 ? run.value(args[2], data) : null
    return run
      .each(args, data)
      .reduce<unknown>((accumulator, current) => run.value(args[1], { current, accumulator }), first)
  },
  all(run, args, data) {
    const list = run.each(args, data)
    return list.length > 0 && list.every(item => truthy(run.value(args[1], item)))
  },
  none: (run, args, data) => !run.each(args, data).some(item => truthy(run.value(args[1], item))),
  some: (run, args, data) => run.each(args, data).some(item => truthy(run.value(args[1], item))),
}

/** Whether the second argument of an operator is evaluated for each element, with that as its root. */
export const iteratesElements = (name: string): boolean => Object.hasOwn(OVER_ELEMENTS, name)

const OPERATORS: Record<string, Operator> = {
  ...OVER_ELEMENTS,
  var(run, args, data) {
    const path = args.length === 0 ? '' : run.value(args[0], data)
    const value = path === null ? data : readPath(data, pathAt(run, path))
    return value === null && args.length > 1 ? run.value(args[1], data) : run.found(value)
  },
  missing(run, args, data) {
    const given = run.values(args, data)
    return missing(run, Array.isArray(given[0]) ? given[0] : given, data)
  },
  missing_some(run, args, data) {
    const [needed, given] = run.values(args, data)
    const keys = listOf(given ?? [])
    const absent = missing(run, keys, data)
    return keys.length - absent.length >= run.number(needed) ? [] : absent
  },
  if: conditional,
  '?:': conditional,
  '==': (run, args, data) => run.alike(run.value(args[0], data), run.value(args[1], data)),
  '!=': (run, args, data) => !run.alike(run.value(args[0], data), run.value(args[1], data)),
  '===': (run, args, data) => run.equal(run.value(args[0], data), run.value(args[1], data)),
  '!==': (run, args, data) => !run.equal(run.value(args[0], data), run.value(args[1], data)),
  '!': (run, args, data) => !truthy(run.value(args[0], data)),
  '!!': (run, args, data) => truthy(run.value(args[0], data)),
  and: firstThat(value => !truthy(value)),
  or: firstThat(truthy),
  '??': firstThat(value => value !== null),
  '<': (run, args, data) => run.ordered(args, data, (left, right) => left < right),
  '<=': (run, args, data) => run.ordered(args, data, (left, right) => left <= right),
  '>': (run, args, data) => run.ordered(args, data, (left, right) => left > right),
  '>=': (run, args, data) => run.ordered(args, data, (left, right) => left >= right),
  max: folded(Math.max, Number.NEGATIVE_INFINITY),
  min: folded(Math.min, Number.POSITIVE_INFINITY),
  '+': folded((left, right) => left + right, 0),
  '*': folded((left, right) => left * right, 1),
  '-'(run, args, data) {
    const [left, right] = run.values(args.slice(0, 2), data)
    return args.length < 2 ? -run.number(left) : run.number(left) - run.number(right)
  },
  '/': (run, args, data) => run.number(run.value(args[0], data)) / run.number(run.value(args[1], data)),
  '%': (run, args, data) => run.number(run.value(args[0], data)) % run.number(run.value(args[1], data)),
  merge(run, args, data) {
    const lists = run.values(args, data)
    run.spend(MOVED * lists.reduce<number>((sum, list) => sum + (Array.isArray(list) ? list.length : 1), 0))
    return lists.flat()
  },
  in: (run, args, data) => contains(run, run.value(args[0], data), run.value(args[1], data)),
  cat: (run, args, data) =>
    run
      .values(args, data)
      .map(value => run.text(value))
      .join(''),
  substr(run, args, data) {
    const [text, start, length] = run.values(args.slice(0, 3), data)
    const given = args.length > 2 && length !== null ? whole(run.number(length)) : null
    return part(run.text(text), whole(run.number(start)), given)
  },
  length(run, args, data) {
    const value = run.value(args[0], data)
    run.expect(typeof value === 'string' || Array.isArray(value), 'measures a value that is missing')
    return typeof value === 'string' || Array.isArray(value) ? value.length : 0
  },
  preserve: (_run, args) => args[0],
}

/**
 * A result as JSON: without what it shares with the root and within itself, and without numbers that JSON does not have.
 * @throws ExpressionError
 */
function copied(result: unknown): { copy: unknown; values: number } {
  let room = MAX_RESULT_BYTES
  const take = (bytes: number) => {
    room -= bytes
    if (room < 0) throw new ExpressionError('has a result of more than 10 MiB')
  }
  let values = 0
  const copy = (value: unknown, levels: number): unknown => {
    if (++values > MAX_RESULT_VALUES)
      throw new ExpressionError(`has a result of more than ${MAX_RESULT_VALUES.toLocaleString('en')} values`)
    if (typeof value === 'string') {
      take(Buffer.byteLength(value) + 2)
      // `substr` can cut a pair of surrogates in two, which no column of the database takes.
      return value.toWellFormed()
    }
    if (typeof value !== 'object' || value === null) {
      take(4)
      return typeof value === 'number' && !Number.isFinite(value) ? null : (value ?? null)
    }
    if (levels === 0) throw new ExpressionError(`has a result of more than ${MAX_RESULT_NESTING} levels`)
    take(2)
    if (Array.isArray(value)) return value.map(item => copy(item, levels - 1))
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => {
        take(Buffer.byteLength(key) + 4)
        return [key, copy(item, levels - 1)]
      }),
    )
  }
  return { copy: copy(result, MAX_RESULT_NESTING), values }
}
