import { raiseInvalid } from '#core/base/errors.ts'

export type Thresholds = { duplicate_threshold?: number | null; supersede_threshold?: number | null }

const DEFAULT_DUPLICATE = 0.95
const DEFAULT_SUPERSEDE = 0.9

/**
 * Returns the effective thresholds, each from the first layer that sets it. Raises VALIDATION_FAILED unless the
 * supersede threshold is below the duplicate threshold.
 */
export function effectiveThresholds(...layers: readonly Thresholds[]): { duplicate: number; supersede: number } {
  const firstSet = (name: keyof Thresholds): number | undefined =>
    layers.map(layer => layer[name]).find(value => value != null) ?? undefined
  const duplicate = firstSet('duplicate_threshold') ?? DEFAULT_DUPLICATE
  const supersede = firstSet('supersede_threshold') ?? DEFAULT_SUPERSEDE
  if (supersede >= duplicate)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'supersede_threshold',
      message: `must be less than duplicate_threshold (${duplicate}), but is ${supersede}`,
    })
  return { duplicate, supersede }
}
