import { AppError } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { ExpressionError } from '#core/expressions/evaluate.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import type { FiringRow, TriggerRow } from './model.ts'
import { inputInvalid } from './targets.ts'

/** Value of `firing` in expressions of `input_mapping`. */
type FiringFacts = Pick<FiringRow, 'id' | 'source'> & { scheduled_for: string | null; fired_at: string }

const MAPPED_BYTES = 1024 * 1024

type MappingTrigger = Pick<TriggerRow, 'id' | 'project_id' | 'name' | 'input' | 'input_mapping'>

/**
 * Returns the input of a firing: the trigger's input, with keys of the firing's own input taking precedence, passed
 * through `input_mapping` if set.
 * @param waitMs longest wait for a thread
 * @throws TRIGGER_INPUT_INVALID if the mapping fails, exceeds its budget or returns more than 1 MiB; SERVICE_NOT_READY
 *   if no thread is free
 */
export async function effectiveInput(
  services: Services,
  { id, project_id, name, input, input_mapping }: MappingTrigger,
  ownInput: Record<string, unknown>,
  firing: FiringFacts,
  waitMs?: number,
): Promise<Record<string, unknown>> {
  const merged = { ...input, ...ownInput }
  if (!input_mapping) return merged
  const root = { input: merged, trigger: { id, name }, firing }
  try {
    const mapped = await evaluate(services, project_id, input_mapping, root, { waitMs })
    if (!isObject(mapped)) return inputInvalid('input_mapping: must return an object')
    if (Buffer.byteLength(JSON.stringify(mapped)) > MAPPED_BYTES)
      inputInvalid('input_mapping: must return at most 1 MiB')
    return mapped
  } catch (error) {
    if (error instanceof AppError || !(error instanceof ExpressionError)) throw error
    return inputInvalid(`input_mapping: ${error.message}`, error)
  }
}
