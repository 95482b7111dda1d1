import { AppError } from '../../core/api/errors.ts'
import { type EvaluationBudget, ExpressionError, evaluate, isObject } from '../../core/expressions/evaluate.ts'
import type { FiringRow, TriggerRow } from './model.ts'
import { inputInvalid } from './targets.ts'

/** What expressions of `input_mapping` read of a firing. */
type Facts = Pick<FiringRow, 'id' | 'source'> & { scheduled_for: string | null; fired_at: string }

const MAPPED_BYTES = 1024 * 1024

/**
 * The input of a firing: what came with it over that of the trigger, key by key, and where the trigger maps it, what the
 * mapping makes of that.
 * @param spent what is spent of the budget of the mapping
 * @throws TRIGGER_INPUT_INVALID for a mapping that costs or makes too much
 */
export function effectiveInput(
  { id, name, input, input_mapping }: Pick<TriggerRow, 'id' | 'name' | 'input' | 'input_mapping'>,
  given: Record<string, unknown>,
  firing: Facts,
  spent?: EvaluationBudget,
): Record<string, unknown> {
  const merged = { ...input, ...given }
  if (!input_mapping) return merged
  try {
    const mapped = evaluate(input_mapping, { input: merged, trigger: { id, name }, firing }, spent)
    if (!isObject(mapped)) return inputInvalid('input_mapping: must make an object')
    if (Buffer.byteLength(JSON.stringify(mapped)) > MAPPED_BYTES) inputInvalid('input_mapping: makes more than 1 MiB')
    return mapped
  } catch (error) {
    if (error instanceof AppError || !(error instanceof ExpressionError)) throw error
    return inputInvalid(`input_mapping: ${error.message}`)
  }
}
