import { AppError } from '../../core/api/errors.ts'
import { ExpressionError, evaluateBriefly, isObject, NotBriefError } from '../../core/expressions/evaluate.ts'
import { evaluate } from '../../core/expressions/evaluation.ts'
import type { Services } from '../../core/process/services.ts'
import type { FiringRow, TriggerRow } from './model.ts'
import { inputInvalid } from './targets.ts'

/** Value of `firing` in expressions of `input_mapping`. */
type FiringFacts = Pick<FiringRow, 'id' | 'source'> & { scheduled_for: string | null; fired_at: string }

const MAPPED_BYTES = 1024 * 1024

type MappingTrigger = Pick<TriggerRow, 'id' | 'project_id' | 'name' | 'input' | 'input_mapping'>

/**
 * Returns the input of a firing: the trigger's input, with keys of the firing's own input taking precedence, passed
 * through `input_mapping` if set.
 * @throws TRIGGER_INPUT_INVALID if the mapping fails, exceeds its budget or returns more than 1 MiB; SERVICE_NOT_READY
 *   if no thread is free
 */
export const effectiveInput = (
  services: Services,
  trigger: MappingTrigger,
  ownInput: Record<string, unknown>,
  firing: FiringFacts,
): Promise<Record<string, unknown>> =>
  mapInput(trigger, ownInput, firing, (mapping, root) => evaluate(services, trigger.project_id, mapping, root))

/** Returns the input of a firing like `effectiveInput`, with the limits of a brief evaluation; `isNotBrief` for its error. */
export const briefInput = (
  trigger: MappingTrigger,
  ownInput: Record<string, unknown>,
  firing: FiringFacts,
  evaluateMapping: (mapping: unknown, root: object) => unknown = (mapping, root) => evaluateBriefly(mapping, root),
): Promise<Record<string, unknown>> => mapInput(trigger, ownInput, firing, evaluateMapping)

/** Whether an input was not mapped because that is not brief. */
export const isNotBrief = (error: unknown): boolean => (error as Error).cause instanceof NotBriefError

async function mapInput(
  { id, name, input, input_mapping }: MappingTrigger,
  ownInput: Record<string, unknown>,
  firing: FiringFacts,
  evaluateMapping: (mapping: unknown, root: object) => unknown,
): Promise<Record<string, unknown>> {
  const merged = { ...input, ...ownInput }
  if (!input_mapping) return merged
  try {
    const mapped = await evaluateMapping(input_mapping, { input: merged, trigger: { id, name }, firing })
    if (!isObject(mapped)) return inputInvalid('input_mapping: must return an object')
    if (Buffer.byteLength(JSON.stringify(mapped)) > MAPPED_BYTES)
      inputInvalid('input_mapping: must return at most 1 MiB')
    return mapped
  } catch (error) {
    if (error instanceof AppError || !(error instanceof ExpressionError)) throw error
    return inputInvalid(`input_mapping: ${error.message}`, error)
  }
}
