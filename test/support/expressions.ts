import {
  type EvaluationBudget,
  evaluateFully,
  freshBudget,
  requireValues,
  type Strictness,
} from '#core/expressions/evaluate.ts'

/** Evaluates an expression in this thread, with the whole budget. */
export function evaluate(
  expression: unknown,
  root: unknown,
  spent: EvaluationBudget = freshBudget(),
  strictness: Strictness = 'coercing',
): unknown {
  const outcome = evaluateFully({ expressions: [expression], root, spent, strictness, bytes: null })
  Object.assign(spent, outcome.spent)
  return requireValues(outcome)[0]
}
