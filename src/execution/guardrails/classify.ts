import { ExactNumber } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { ExpressionError, readPath, type Strictness } from '#core/expressions/evaluate.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import type { RootRead } from '#core/expressions/references.ts'
import { type GuardrailRule, isAmbient, isClass, isContext } from './document.ts'
import type { Class, Evaluation, GuardrailDecision } from './model.ts'

/** Values that the expressions of a rule read. */
export type Facts = { args: Record<string, unknown>; context: Record<string, unknown> | null; runtime: object }

/**
 * Classifies a call by a rule. Fails closed: an expression that compares a missing value or a value of another type, or
 * that exceeds its budget, results in the default class, and a guard fails. Values of `context` and `runtime` must
 * exist on every branch; arguments only where they are read, because one rule may serve tools with different arguments.
 * @param contextFailed whether the context tool returned no context
 */
export async function classifyText(
  services: Services,
  rule: GuardrailRule,
  facts: Facts,
  contextFailed: boolean,
): Promise<Pick<Evaluation, 'class' | 'decision' | 'guard_result'>> {
  const evaluateOrNull: EvaluateRule = (expression, strictness) =>
    evaluate(services, rule.project_id, expression, facts, { strictness }).catch(nullForFailure)
  const callClass = await evaluateClass(rule, facts, contextFailed, evaluateOrNull)
  const guard_result = callClass === 'B' ? await evaluateGuard(rule, facts, contextFailed, evaluateOrNull) : null
  return {
    class: callClass,
    guard_result,
    decision: decisionOf(callClass, guard_result, rule.document.escalate ?? false),
  }
}

function decisionOf(callClass: Class, guardResult: boolean | null, escalate: boolean): GuardrailDecision {
  if (callClass === 'A' || (callClass === 'B' && guardResult)) return 'execute'
  if (callClass === 'D') return 'blocked'
  return callClass === 'C' || escalate ? 'route_to_approval' : 'tripwire'
}

/** Evaluates an expression of a rule; null if it fails. */
type EvaluateRule = (expression: unknown, strictness: Strictness) => Promise<unknown>

async function evaluateClass(
  { document, reads }: GuardrailRule,
  facts: Facts,
  contextFailed: boolean,
  evaluateOrNull: EvaluateRule,
): Promise<Class> {
  if (isClass(document.class)) return document.class
  const fallback = document.default_class ?? 'C'
  if (contextFailed && reads.class.some(readsContext)) return fallback
  if (reads.class.some(reading => reading.ordered && isMissing(reading, facts))) return fallback
  const result = await evaluateOrNull(document.class, 'typed')
  return isClass(result) ? result : fallback
}

async function evaluateGuard(
  { document, reads }: GuardrailRule,
  facts: Facts,
  contextFailed: boolean,
  evaluateOrNull: EvaluateRule,
): Promise<boolean> {
  if (document.guard === undefined) return false
  if (contextFailed && reads.guard.some(readsContext)) return false
  const lacking = (reading: RootRead) => isMissing(reading, facts) && !(reading.defaulted && readsContext(reading))
  if (reads.guard.some(lacking)) return false
  return (await evaluateOrNull({ '!!': [document.guard] }, 'present')) === true
}

const readsContext = ({ path }: RootRead): boolean => path !== null && isContext(path)

const isMissing = ({ path, by }: RootRead, facts: Facts): boolean =>
  by === 'var' && path !== null && isAmbient(path) && readPath(facts, path) === null

function nullForFailure(error: unknown): null {
  if (error instanceof ExpressionError) return null
  throw error
}

/** Maximum number of characters of a stored value. */
const MAX_VALUE_CHARS = 2048

/**
 * Returns the values that a rule reads, by path; long values are truncated to the start of their text.
 * @param storesArguments whether the project stores content
 */
export function snapshotOf({ paths }: GuardrailRule, facts: Facts, storesArguments: boolean): Record<string, unknown> {
  return Object.fromEntries(
    paths.map(path => [
      path,
      !storesArguments && path.startsWith('args') ? null : storableValue(truncate(readPath(facts, path))),
    ]),
  )
}

function truncate(value: unknown): unknown {
  if ((typeof value !== 'object' && typeof value !== 'string') || value instanceof ExactNumber) return value
  const text = typeof value === 'string' ? value : JSON.stringify(value)
  return text.length <= MAX_VALUE_CHARS ? value : `${text.slice(0, MAX_VALUE_CHARS)}…`
}
