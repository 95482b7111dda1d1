import { raiseInvalid } from '#core/base/errors.ts'
import type { ChunkSettings, PartialSettings } from './model.ts'

/** Default size and overlap. `auto` has no overlap: its chunks end at paragraph boundaries. */
const DEFAULTS = {
  size: { characters: { size: 1000, overlap: 200 }, tokens: { size: 256, overlap: 32 } },
  auto: { characters: { size: 1200, overlap: 0 }, tokens: { size: 300, overlap: 0 } },
}

/**
 * Merges chunk settings; for every field the first part that sets it wins. Unit, size and overlap of a part apply only
 * if its strategy is the effective one, and size and overlap only if its unit is. They are null unless the strategy
 * uses them. A default overlap that is too large becomes a fifth of the size; an explicit one raises VALIDATION_FAILED.
 */
export function effectiveSettings(...parts: (PartialSettings | null | undefined)[]): ChunkSettings {
  const present = parts.filter(part => part !== null && part !== undefined)
  const strategy = firstSet(present, 'chunk_strategy') ?? 'whole'
  if (strategy !== 'size' && strategy !== 'auto') {
    return { chunk_strategy: strategy, chunk_unit: null, chunk_size: null, chunk_overlap: null }
  }
  const ofStrategy = present.filter(part => (part.chunk_strategy ?? strategy) === strategy)
  const unit = firstSet(ofStrategy, 'chunk_unit') ?? 'characters'
  const ofUnit = ofStrategy.filter(part => (part.chunk_unit ?? unit) === unit)
  const defaults = DEFAULTS[strategy][unit]
  const size = firstSet(ofUnit, 'chunk_size') ?? defaults.size
  const overlap =
    firstSet(ofUnit, 'chunk_overlap') ?? (defaults.overlap < size ? defaults.overlap : Math.floor(size / 5))
  if (overlap >= size) {
    raiseInvalid({
      code: 'TOO_LARGE',
      path: 'chunk_overlap',
      message: `must be smaller than chunk_size, which is ${size}`,
    })
  }
  return { chunk_strategy: strategy, chunk_unit: unit, chunk_size: size, chunk_overlap: overlap }
}

/** Picks the chunk settings of an object. */
export const chunkSettings = <T extends PartialSettings>({
  chunk_strategy,
  chunk_unit,
  chunk_size,
  chunk_overlap,
}: T): Pick<T, keyof ChunkSettings> => ({ chunk_strategy, chunk_unit, chunk_size, chunk_overlap })

const firstSet = <F extends keyof ChunkSettings>(parts: PartialSettings[], field: F) =>
  parts.map(part => part[field]).find(value => value !== null && value !== undefined)
