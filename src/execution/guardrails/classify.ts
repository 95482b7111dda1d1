import { storableValue } from '../../core/api/storable-text.ts'
import { ExpressionError, evaluate, freshBudget, readPath, type Strictness } from '../../core/expressions/evaluate.ts'
import type { RootRead } from '../../core/expressions/references.ts'
import { type GuardrailRule, isAmbient, isClass, isContext } from './document.ts'
import type { Class, Evaluation, GuardrailDecision } from './model.ts'

/** What the expressions of a rule read. */
export type Facts = { args: Record<string, unknown>; context: Record<string, unknown> | null; runtime: object }

/**
 * What a rule says of a call. It fails closed: what compares a value that is missing or of another type, or costs too
 * much, gives the default class, and a guard that does not hold. Values of `context` and `runtime` must be there whatever
 * branch is taken; arguments only where they are read, because a rule may be held to tools with different ones.
 * @param contextFailed the context tool did not answer
 */
export function classifyText(
  rule: GuardrailRule,
  facts: Facts,
  contextFailed: boolean,
): Pick<Evaluation, 'class' | 'decision' | 'guard_result'> {
  const given = classOf(rule, facts, contextFailed)
  const guard_result = given === 'B' ? guardHolds(rule, facts, contextFailed) : null
  return { class: given, guard_result, decision: decisionOf(given, guard_result, rule.document.escalate ?? false) }
}

function decisionOf(given: Class, guarded: boolean | null, escalate: boolean): GuardrailDecision {
  if (given === 'A' || (given === 'B' && guarded)) return 'execute'
  if (given === 'D') return 'blocked'
  return given === 'C' || escalate ? 'route_to_approval' : 'tripwire'
}

function classOf({ document, reads }: GuardrailRule, facts: Facts, contextFailed: boolean): Class {
  if (isClass(document.class)) return document.class
  const fallback = document.default_class ?? 'C'
  if (contextFailed && reads.class.some(readsContext)) return fallback
  if (reads.class.some(reading => reading.ordered && isMissing(reading, facts))) return fallback
  const result = quietly(document.class, facts, 'typed')
  return isClass(result) ? result : fallback
}

function guardHolds({ document, reads }: GuardrailRule, facts: Facts, contextFailed: boolean): boolean {
  if (document.guard === undefined) return false
  if (contextFailed && reads.guard.some(readsContext)) return false
  const lacking = (reading: RootRead) => isMissing(reading, facts) && !(reading.defaulted && readsContext(reading))
  if (reads.guard.some(lacking)) return false
  return quietly({ '!!': [document.guard] }, facts, 'present') === true
}

const readsContext = ({ path }: RootRead): boolean => path !== null && isContext(path)

const isMissing = ({ path, by }: RootRead, facts: Facts): boolean =>
  by === 'var' && path !== null && isAmbient(path) && readPath(facts, path) === null

function quietly(expression: unknown, facts: Facts, strictness: Strictness): unknown {
  try {
    return evaluate(expression, facts, freshBudget(), strictness)
  } catch (error) {
    if (error instanceof ExpressionError) return null
    throw error
  }
}

/** Characters of a value that are kept. */
const MAX_SHOWN = 2048

/**
 * What a rule reads, by its path. A long value is kept as the start of its text.
 * @param keepsArguments false where the project keeps no content
 */
export function snapshotOf({ paths }: GuardrailRule, facts: Facts, keepsArguments: boolean): Record<string, unknown> {
  return Object.fromEntries(
    paths.map(path => [
      path,
      !keepsArguments && path.startsWith('args') ? null : storableValue(shown(readPath(facts, path))),
    ]),
  )
}

function shown(value: unknown): unknown {
  if (typeof value !== 'object' && typeof value !== 'string') return value
  const text = typeof value === 'string' ? value : JSON.stringify(value)
  return text.length <= MAX_SHOWN ? value : `${text.slice(0, MAX_SHOWN)}…`
}
