/**
 * JSON Logic, the expressions by which callers map values. Evaluation is total and deterministic, and reads only its
 * root. Its cost is counted and bounded. It begins on the event loop with a small share of the limits, and is repeated
 * in a thread if it needs more (evaluation.ts).
 */

import { ExactNumber, isEqualPrimitive, isObject } from '../base/exact-json.ts'
import { containsText } from '../base/storable-text.ts'

/** An expression cannot be evaluated: it exceeds a limit, or fails in a strict mode. */
export class ExpressionError extends Error {}

const MAX_BYTES = 64 * 1024
const MAX_NESTING = 100
const MAX_APPLICATIONS = 100_000
const MAX_RESULT_BYTES = 10 * 1024 * 1024
/** Most values of a result; shared values count each time they occur. */
const MAX_RESULT_VALUES = 200_000
/** Most levels of a result: more than an expression and a value that it reads have together. */
const MAX_RESULT_NESTING = 200
/** Most characters and elements that all operators read and create: up to 0.3 s. */
const MAX_VOLUME = 16 * 1024 * 1024
/** Fraction of the limits for an evaluation on the event loop: up to 15 ms. */
const BRIEF_SHARE = 1 / 20
/** Volume that takes as long as an application. */
const APPLICATION_COST = MAX_VOLUME / MAX_APPLICATIONS
/** Comparisons of a text search that cost as much as one character. */
const COMPARISONS_PER_UNIT = 16
/** Highest cost of a text search per character of the text. */
const MAX_SEARCH_COST = 4
/** Cost of copying an element to a new array, in characters. */
const COPY_COST = 32
/** Cost of an element and of a key of a literal, in characters: 0.04 and up to 1 microsecond measured. */
const ELEMENT_COST = 8
const KEY_COST = 64
/** Cost of a value of a result, in characters. */
const RESULT_COST = 16
/** Characters of a result that cost as much as one character that an operator reads. */
const RESULT_CHARS_PER_UNIT = 16

type Data = unknown
type Operator = (run: Evaluation, args: readonly unknown[], data: Data) => unknown

/** Returns the operator of an expression and its arguments, null for a literal. */
export function operationOf(value: unknown): [string, unknown] | null {
  if (!isObject(value)) return null
  const keys = Object.keys(value)
  return keys.length === 1 && Object.hasOwn(OPERATORS, keys[0]) ? [keys[0], value[keys[0]]] : null
}

/** Returns the arguments of an operator as a list; a single argument may be written without one. */
export const listOf = (args: unknown): readonly unknown[] => (Array.isArray(args) ? args : [args])

/** Returns why a value cannot be stored as an expression, null if it can. */
export function expressionProblem(expression: unknown): string | null {
  if (Buffer.byteLength(JSON.stringify(expression)) > MAX_BYTES) return 'must be at most 64 KiB'
  return nestsDeeper(expression, MAX_NESTING) ? `is nested deeper than ${MAX_NESTING} levels` : null
}

const nestsDeeper = (value: unknown, levels: number): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (levels === 0 || Object.values(value).some(item => nestsDeeper(item, levels - 1)))

/**
 * Handling of operands of an unexpected type. `coercing`: they are converted as in JavaScript. `typed`: the evaluation
 * fails, so that no missing or empty value counts as zero or as a text. `present`: like `typed`, and reading a missing
 * path without a default fails too.
 */
export type Strictness = 'coercing' | 'typed' | 'present'

/** Cost so far, of one evaluation or several that share a budget. */
export type EvaluationBudget = { applications: number; volume: number }

export const freshBudget = (): EvaluationBudget => ({ applications: 0, volume: 0 })

const FULL: EvaluationBudget = { applications: MAX_APPLICATIONS, volume: MAX_VOLUME }

/** Returns the cost of a budget as a fraction of a brief evaluation; 1 or more is too long for the event loop. */
export const briefShareOf = ({ applications, volume }: EvaluationBudget): number =>
  (volume + applications * APPLICATION_COST) / (MAX_VOLUME * BRIEF_SHARE)

/** Returns the limits of a brief evaluation after the given cost: at most the whole budget. */
export const briefLimits = ({ applications, volume }: EvaluationBudget): EvaluationBudget => ({
  applications: Math.min(MAX_APPLICATIONS, applications + MAX_APPLICATIONS * BRIEF_SHARE),
  volume: Math.min(MAX_VOLUME, volume + MAX_VOLUME * BRIEF_SHARE),
})

/** Cost after which no further evaluation that shares the budget succeeds. */
export const exhaustedBudget = (): EvaluationBudget => ({
  applications: MAX_APPLICATIONS + 1,
  volume: MAX_VOLUME + 1,
})

/** Expressions over one root, or literals that contain expressions. */
export type EvaluationRequest = {
  expressions: readonly unknown[]
  root: unknown
  /** Cost of earlier evaluations that share the budget. */
  spent: EvaluationBudget
  strictness: Strictness
  /** Most bytes of JSON of all values together. */
  bytes: number | null
}

export type EvaluationOutcome = {
  /** Values in the order of the expressions, as JSON that shares nothing with the root. */
  values: unknown[]
  spent: EvaluationBudget
  /** Problem of the expression after those with values. */
  failed?: string
  /** Whether the values exceed their bytes with this expression. */
  tooLarge?: boolean
}

/** An expression exceeds the limits of a brief evaluation, but not the limits of its budget. */
export class NotBriefError extends ExpressionError {}

/**
 * Evaluates expressions until one fails.
 * @throws NotBriefError if the evaluation exceeds `limits` without using up its budget
 */
export function evaluateWithin(
  limits: EvaluationBudget,
  { expressions, root, spent: before, strictness, bytes }: EvaluationRequest,
): EvaluationOutcome {
  const spent = { ...before }
  const evaluation = new Evaluation(spent, strictness, limits)
  const values: unknown[] = []
  let size = 0
  try {
    for (const expression of expressions) {
      const value = copyResult(evaluation, evaluation.value(expression, root))
      if (bytes !== null) size += Buffer.byteLength(JSON.stringify(value))
      if (bytes !== null && size > bytes) return { values, spent, tooLarge: true }
      values.push(value)
    }
    return { values, spent }
  } catch (error) {
    if (error instanceof NotBriefError || !(error instanceof ExpressionError)) throw error
    return { values, spent, failed: error.message }
  }
}

/** Evaluates expressions with the whole budget: too long for the event loop. */
export const evaluateFully = (request: EvaluationRequest): EvaluationOutcome => evaluateWithin(FULL, request)

/**
 * Evaluates an expression with the limits of a brief evaluation only: where no thread can be awaited, or for thousands
 * of events.
 * @param spent cost of earlier evaluations that share the limits
 * @throws ExpressionError, NotBriefError above these limits
 */
export function evaluateBriefly(expression: unknown, root: unknown, spent = freshBudget()): unknown {
  const request = { expressions: [expression], root, spent, strictness: 'coercing', bytes: null } as const
  const outcome = evaluateWithin(briefLimits(freshBudget()), request)
  Object.assign(spent, outcome.spent)
  return requireValues(outcome)[0]
}

/** Returns the values of an outcome. @throws ExpressionError if an expression failed */
export function requireValues({ values, failed }: Pick<EvaluationOutcome, 'values' | 'failed'>): unknown[] {
  if (failed !== undefined) throw new ExpressionError(failed)
  return values
}

/** An evaluation with its cost and limits. */
class Evaluation {
  readonly #spent: EvaluationBudget
  readonly #strictness: Strictness
  readonly #limits: EvaluationBudget

  constructor(spent: EvaluationBudget, strictness: Strictness, limits: EvaluationBudget) {
    this.#spent = spent
    this.#strictness = strictness
    this.#limits = limits
  }

  /** Fails a strict evaluation if an operand has an unexpected type. */
  expect(usable: boolean, problem: string): void {
    if (!usable && this.#strictness !== 'coercing') throw new ExpressionError(`${problem}, or has another type`)
  }

  /** Returns the value of a path without a default. */
  requirePresent(value: unknown): unknown {
    if (value === null && this.#strictness === 'present') throw new ExpressionError('reads a value that is missing')
    return value
  }

  /** Counts characters or elements that are about to be read or created. */
  spend(volume: number): void {
    this.#spent.volume += volume
    if (this.#spent.volume > this.#limits.volume) this.#exceed('takes too long to evaluate')
  }

  #apply(): void {
    this.#spent.applications++
    if (this.#spent.applications > this.#limits.applications) this.#exceed('applies too many operators')
  }

  #exceed(problem: string): never {
    const { applications, volume } = this.#spent
    if (applications > MAX_APPLICATIONS || volume > MAX_VOLUME) throw new ExpressionError(problem)
    throw new NotBriefError(problem)
  }

  /** Evaluates an expression over `data`. */
  value(expression: unknown, data: Data): unknown {
    this.spend(1)
    const operation = operationOf(expression)
    if (operation) {
      this.#apply()
      const [name, args] = operation
      return OPERATORS[name](this, name === 'preserve' ? [args] : listOf(args), data) ?? null
    }
    // A literal is built again each time that an iteration reaches it.
    if (Array.isArray(expression)) {
      this.spend(ELEMENT_COST * expression.length)
      return expression.map(item => this.value(item, data))
    }
    if (!isObject(expression)) return expression ?? null
    this.spend(KEY_COST * Object.keys(expression).length)
    return Object.fromEntries(Object.entries(expression).map(([key, item]) => [key, this.value(item, data)]))
  }

  values(args: readonly unknown[], data: Data): unknown[] {
    return args.map(arg => this.value(arg, data))
  }

  /** Evaluates the first argument as an array; any other value is an empty one. */
  list(args: readonly unknown[], data: Data): unknown[] {
    const list = this.value(args[0], data)
    this.expect(Array.isArray(list), 'iterates over a list that is missing')
    if (!Array.isArray(list)) return []
    this.spend(list.length)
    return list
  }

  /**
   * Converts a value to a primitive as JavaScript does, without calling methods of the value.
   * @throws ExpressionError for a number without an equal double
   */
  primitive(value: unknown): string | number | boolean | null {
    if (Array.isArray(value)) return this.text(value)
    if (value instanceof ExactNumber) return doubleOf(value)
    if (typeof value === 'object' && value !== null) return '[object Object]'
    return value as string | number | boolean | null
  }

  /** Converts a value to text; null is empty. */
  text(value: unknown, levels = MAX_RESULT_NESTING): string {
    this.expect(isScalar(value), 'converts to text a value that is missing')
    if (Array.isArray(value)) {
      if (levels === 0) throw new ExpressionError(`converts to text a value of more than ${MAX_RESULT_NESTING} levels`)
      this.spend(value.length)
      return value.map(item => this.text(item, levels - 1)).join(',')
    }
    if (value instanceof ExactNumber) {
      this.spend(value.digits.length)
      return value.digits
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
    return isEqualPrimitive(left, right)
  }

  /** Compares like `==` in JavaScript. */
  looselyEqual(left: unknown, right: unknown): boolean {
    if (left === null || right === null) return left === right
    this.expect(isScalar(left) && typeOf(left) === typeOf(right), 'compares with a value that is missing')
    if (typeOf(left) === 'number' && typeOf(right) === 'number') return this.equal(left, right)
    if (typeof left === 'object' && typeof right === 'object') return left === right
    const [first, second] = [this.primitive(left), this.primitive(right)]
    if (typeof first === typeof second) return this.equal(first, second)
    return this.number(first) === this.number(second)
  }

  /**
   * Whether each of two or three operands compares to the next one by `compare`. Numbers are compared by their doubles, which
   * have the same order unless they are equal: a rule with a limit must not fail for a number beyond it.
   */
  isOrdered(args: readonly unknown[], data: Data, compare: (left: any, right: any) => boolean): boolean {
    const values = this.values(args.slice(0, 3), data)
    if (values.length < 2) values.push(null)
    this.expect(values.every(isNumber) || values.every(isText), 'compares with a value that is missing')
    const operands = values.map(value => (value instanceof ExactNumber ? Number(value.digits) : this.primitive(value)))
    return operands.slice(1).every((right, index) => {
      const left = operands[index]
      if (left === right && !isEqualPrimitive(values[index], values[index + 1]))
        for (const value of values) this.primitive(value)
      if (typeof left === 'string' && typeof right === 'string') this.spend(Math.min(left.length, right.length))
      return compare(left, right)
    })
  }
}

/** Returns the double of a number. @throws ExpressionError if it has none */
function doubleOf(exact: ExactNumber): number {
  const double = exact.toNumber()
  if (double === null)
    throw new ExpressionError(
      `calculates with ${exact.digits.slice(0, 100)}, which has more digits than a number keeps`,
    )
  return double
}

const typeOf = (value: unknown): string => (value instanceof ExactNumber ? 'number' : typeof value)

const isScalar = (value: unknown): boolean => ['string', 'number', 'boolean'].includes(typeOf(value))

const isNumber = (value: unknown): boolean => Number.isFinite(value) || value instanceof ExactNumber

/** Whether a value is a text that is not empty. */
const isText = (value: unknown): boolean => typeof value === 'string' && value !== ''

/** Whether a value counts as true. */
export const truthy = (value: unknown): boolean =>
  Array.isArray(value) ? value.length > 0 : value instanceof ExactNumber ? Number(value.digits) !== 0 : Boolean(value)

const HIDDEN = ['__proto__', 'prototype', 'constructor']

/** Whether paths cannot read a property of this name. */
export const isReservedName = (name: string): boolean => HIDDEN.includes(name)

/** Returns the value at a dotted path, null if a segment is missing. */
export function readPath(root: unknown, path: string): unknown {
  if (path === '') return root
  let value = root
  for (const segment of path.split('.')) {
    const isContainer = Array.isArray(value) || isObject(value)
    if (!isContainer || isReservedName(segment) || !Object.hasOwn(value as object, segment)) return null
    value = (value as Record<string, unknown>)[segment]
  }
  return value ?? null
}

function pathFrom(run: Evaluation, value: unknown): string {
  const path = run.text(value)
  run.spend(path.length)
  return path
}

function evaluateIf(run: Evaluation, args: readonly unknown[], data: Data): unknown {
  for (let index = 0; index + 1 < args.length; index += 2)
    if (truthy(run.value(args[index], data))) return run.value(args[index + 1], data)
  return args.length % 2 === 1 ? run.value(args[args.length - 1], data) : null
}

/** Returns an operator whose value is the first argument that satisfies `isDecisive`, or the last one. */
function firstThat(isDecisive: (value: unknown) => boolean): Operator {
  return (run, args, data) => {
    let value: unknown = null
    for (const arg of args) {
      value = run.value(arg, data)
      if (isDecisive(value)) return value
    }
    return value
  }
}

function findMissing(run: Evaluation, keys: readonly unknown[], data: Data): unknown[] {
  run.spend(keys.length)
  return keys.filter(key => {
    const value = readPath(data, pathFrom(run, key))
    return value === null || value === ''
  })
}

function contains(run: Evaluation, needle: unknown, hay: unknown): boolean {
  run.expect(typeof hay === 'string' ? isText(needle) : Array.isArray(hay), 'searches in a value that is missing')
  if (typeof hay === 'string') {
    const part = run.text(needle)
    run.spend(hay.length * (1 + Math.min(part.length / COMPARISONS_PER_UNIT, MAX_SEARCH_COST)) + part.length)
    return containsText(hay, part)
  }
  if (!Array.isArray(hay)) return false
  run.spend(hay.length)
  const isFound = hay.some(item => run.equal(item, needle))
  // A needle whose type no item has could not have been found.
  const isComparable =
    isFound || needle === null || hay.length === 0 || hay.some(item => typeOf(item) === typeOf(needle))
  run.expect(isComparable && (isFound || needle === null || isScalar(needle)), 'searches for a value that is missing')
  return isFound
}

/**
 * Returns a part of a text. A negative `start` counts from the end, a negative `length` omits characters at the end.
 */
function substring(text: string, start: number, length: number | null): string {
  const from = start < 0 ? Math.max(0, text.length + start) : start
  if (length === null) return text.slice(from)
  return length < 0 ? text.slice(from, Math.max(from, text.length + length)) : text.slice(from, from + length)
}

const toInteger = (value: number): number => Math.trunc(value) || 0

const foldNumbers =
  (fold: (left: number, right: number) => number, first: number): Operator =>
  (run, args, data) =>
    run.values(args, data).reduce<number>((sum, value) => fold(sum, run.number(value)), first)

/** Operators whose second argument is evaluated for each element, with the element as its root. */
const ITERATORS: Record<string, Operator> = {
  map: (run, args, data) => run.list(args, data).map(item => run.value(args[1], item)),
  filter: (run, args, data) => run.list(args, data).filter(item => truthy(run.value(args[1], item))),
  reduce(run, args, data) {
    const first = args.length > 2 ? run.value(args[2], data) : null
    return run
      .list(args, data)
      .reduce<unknown>((accumulator, current) => run.value(args[1], { current, accumulator }), first)
  },
  all(run, args, data) {
    const list = run.list(args, data)
    return list.length > 0 && list.every(item => truthy(run.value(args[1], item)))
  },
  none: (run, args, data) => !run.list(args, data).some(item => truthy(run.value(args[1], item))),
  some: (run, args, data) => run.list(args, data).some(item => truthy(run.value(args[1], item))),
}

/** Whether the second argument of an operator is evaluated for each element, with the element as its root. */
export const iteratesElements = (name: string): boolean => Object.hasOwn(ITERATORS, name)

const OPERATORS: Record<string, Operator> = {
  ...ITERATORS,
  var(run, args, data) {
    const path = args.length === 0 ? '' : run.value(args[0], data)
    const value = path === null ? data : readPath(data, pathFrom(run, path))
    return value === null && args.length > 1 ? run.value(args[1], data) : run.requirePresent(value)
  },
  missing(run, args, data) {
    const values = run.values(args, data)
    return findMissing(run, Array.isArray(values[0]) ? values[0] : values, data)
  },
  missing_some(run, args, data) {
    const [needed, candidates] = run.values(args, data)
    const keys = listOf(candidates ?? [])
    const absent = findMissing(run, keys, data)
    return keys.length - absent.length >= run.number(needed) ? [] : absent
  },
  if: evaluateIf,
  '?:': evaluateIf,
  '==': (run, args, data) => run.looselyEqual(run.value(args[0], data), run.value(args[1], data)),
  '!=': (run, args, data) => !run.looselyEqual(run.value(args[0], data), run.value(args[1], data)),
  '===': (run, args, data) => run.equal(run.value(args[0], data), run.value(args[1], data)),
  '!==': (run, args, data) => !run.equal(run.value(args[0], data), run.value(args[1], data)),
  '!': (run, args, data) => !truthy(run.value(args[0], data)),
  '!!': (run, args, data) => truthy(run.value(args[0], data)),
  and: firstThat(value => !truthy(value)),
  or: firstThat(truthy),
  '??': firstThat(value => value !== null),
  '<': (run, args, data) => run.isOrdered(args, data, (left, right) => left < right),
  '<=': (run, args, data) => run.isOrdered(args, data, (left, right) => left <= right),
  '>': (run, args, data) => run.isOrdered(args, data, (left, right) => left > right),
  '>=': (run, args, data) => run.isOrdered(args, data, (left, right) => left >= right),
  max: foldNumbers(Math.max, Number.NEGATIVE_INFINITY),
  min: foldNumbers(Math.min, Number.POSITIVE_INFINITY),
  '+': foldNumbers((left, right) => left + right, 0),
  '*': foldNumbers((left, right) => left * right, 1),
  '-'(run, args, data) {
    const [left, right] = run.values(args.slice(0, 2), data)
    return args.length < 2 ? -run.number(left) : run.number(left) - run.number(right)
  },
  '/': (run, args, data) => run.number(run.value(args[0], data)) / run.number(run.value(args[1], data)),
  '%': (run, args, data) => run.number(run.value(args[0], data)) % run.number(run.value(args[1], data)),
  merge(run, args, data) {
    const lists = run.values(args, data)
    run.spend(COPY_COST * lists.reduce<number>((sum, list) => sum + (Array.isArray(list) ? list.length : 1), 0))
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
    const count = args.length > 2 && length !== null ? toInteger(run.number(length)) : null
    return substring(run.text(text), toInteger(run.number(start)), count)
  },
  length(run, args, data) {
    const value = run.value(args[0], data)
    run.expect(typeof value === 'string' || Array.isArray(value), 'measures a value that is missing')
    return typeof value === 'string' || Array.isArray(value) ? value.length : 0
  },
  preserve: (_run, args) => args[0],
}

/**
 * Copies a result as JSON, so that it shares nothing with the root or within itself; non-finite numbers become null.
 * @throws ExpressionError if the result exceeds a limit
 */
function copyResult(run: Evaluation, result: unknown): unknown {
  let remaining = MAX_RESULT_BYTES
  const countBytes = (bytes: number) => {
    remaining -= bytes
    if (remaining < 0) throw new ExpressionError('has a result of more than 10 MiB')
  }
  let values = 0
  const copy = (value: unknown, levels: number): unknown => {
    if (++values > MAX_RESULT_VALUES)
      throw new ExpressionError(`has a result of more than ${MAX_RESULT_VALUES.toLocaleString('en')} values`)
    run.spend(RESULT_COST)
    if (typeof value === 'string') {
      run.spend(value.length / RESULT_CHARS_PER_UNIT)
      countBytes(Buffer.byteLength(value) + 2)
      // `substr` can split a surrogate pair, which PostgreSQL cannot store.
      return value.toWellFormed()
    }
    if (value instanceof ExactNumber) {
      countBytes(value.digits.length)
      return value
    }
    if (typeof value !== 'object' || value === null) {
      countBytes(4)
      return typeof value === 'number' && !Number.isFinite(value) ? null : (value ?? null)
    }
    if (levels === 0) throw new ExpressionError(`has a result of more than ${MAX_RESULT_NESTING} levels`)
    countBytes(2)
    if (Array.isArray(value)) return value.map(item => copy(item, levels - 1))
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => {
        countBytes(Buffer.byteLength(key) + 4)
        return [key, copy(item, levels - 1)]
      }),
    )
  }
  return copy(result, MAX_RESULT_NESTING)
}
