import { AppError } from '../../core/api/errors.ts'
import { type EvaluationBudget, ExpressionError, evaluate, isObject } from '../../core/expressions/evaluate.ts'
import type { FiringRow, TriggerRow } from './model.ts'
import { inputInvalid } from './targets.ts'

/** Value of `firing` in expressions of `input_mapping`. */
type FiringFacts = Pick<FiringRow, 'id' | 'source'> & { scheduled_for: string | null; fired_at: string }

const MAPPED_BYTES = 1024 * 1024

/**
 * Returns the input of a firing: the trigger's input, with keys of the firing's own input taking precedence, passed
 * through `input_mapping` if set.
 * @throws TRIGGER_INPUT_INVALID if the mapping fails, exceeds its budget or returns more than 1 MiB
 */
export function effectiveInput(
  { id, name, input, input_mapping }: Pick<TriggerRow, 'id' | 'name' | 'input' | 'input_mapping'>,
  ownInput: Record<string, unknown>,
  firing: FiringFacts,
  budget?: EvaluationBudget,
): Record<string, unknown> {
  const merged = { ...input, ...ownInput }
  if (!input_mapping) return merged
  try {
    const mapped = evaluate(input_mapping, { input: merged, trigger: { id, name }, firing }, budget)
    if (!isObject(mapped)) return inputInvalid('input_mapping: must return an object')
    if (Buffer.byteLength(JSON.stringify(mapped)) > MAPPED_BYTES)
      inputInvalid('input_mapping: must return at most 1 MiB')
    return mapped
  } catch (error) {
    if (error instanceof AppError || !(error instanceof ExpressionError)) throw error
    return inputInvalid(`input_mapping: ${error.message}`)
  }
}
