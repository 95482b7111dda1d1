import { raiseInvalid } from '../../core/api/errors.ts'

export type Thresholds = { duplicate_threshold?: number | null; supersede_threshold?: number | null }

const DUPLICATE = 0.95
const SUPERSEDE = 0.9

/**
 * The cosines in force: each that of the first layer that has one. Raises VALIDATION_FAILED unless the one to supersede is
 * below the one for duplicates.
 */
export function effectiveThresholds(...layers: readonly Thresholds[]): { duplicate: number; supersede: number } {
  const first = (name: keyof Thresholds): number | undefined =>
    layers.map(layer => layer[name]).find(value => value != null) ?? undefined
  const duplicate = first('duplicate_threshold') ?? DUPLICATE
  const supersede = first('supersede_threshold') ?? SUPERSEDE
  if (supersede >= duplicate)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'supersede_threshold',
      message: `must be below duplicate_threshold: ${supersede} is not below ${duplicate}`,
    })
  return { duplicate, supersede }
}
