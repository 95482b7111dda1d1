import { AppError } from '../../core/api/errors.ts'
import { ExpressionError, evaluate, isObject, type Spent } from '../../core/expressions/evaluate.ts'
import type { FiringRow, TriggerRow } from './model.ts'
import { inputInvalid } from './targets.ts'

/** What expressions of `input_mapping` read of a firing. */
type Facts = Pick<FiringRow, 'id' | 'source'> & { scheduled_for: string | null; fired_at: string }

/**
 * The input of a firing: what came with it over that of the trigger, key by key, and where the trigger maps it, what the
 * mapping makes of that.
 * @param spent what is spent of the budget of the mapping
 * @throws TRIGGER_INPUT_INVALID for a mapping that costs too much
 */
export function effectiveInput(
  { id, name, input, input_mapping }: Pick<TriggerRow, 'id' | 'name' | 'input' | 'input_mapping'>,
  given: Record<string, unknown>,
  firing: Facts,
  spent?: Spent,
): Record<string, unknown> {
  const merged = { ...input, ...given }
  if (!input_mapping) return merged
  try {
    const mapped = evaluate(input_mapping, { input: merged, trigger: { id, name }, firing }, spent)
    return isObject(mapped) ? mapped : inputInvalid('input_mapping: must make an object')
  } catch (error) {
    if (error instanceof AppError || !(error instanceof ExpressionError)) throw error
    return inputInvalid(`input_mapping: ${error.message}`)
  }
}
