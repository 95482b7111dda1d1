import { raiseInvalid } from '../../core/api/errors.ts'
import type { ChunkSettings, PartialSettings } from './model.ts'

/** Size and overlap where nobody says them. `auto` repeats nothing of its own accord: its chunks end where a thought does. */
const DEFAULTS = {
  size: { characters: { size: 1000, overlap: 200 }, tokens: { size: 256, overlap: 32 } },
  auto: { characters: { size: 1200, overlap: 0 }, tokens: { size: 300, overlap: 0 } },
}

/**
 * The settings a text is cut with. For every field the first part that says something about it wins; the last part is
 * the default of the entry point. What a part says about unit, size and overlap goes with the strategy it names, and
 * its numbers with the unit it names: they are passed over once an earlier part has chosen another one. Unit, size and
 * overlap are null unless the strategy takes them. A default overlap too large for the size gives way to a fifth of
 * it; one that somebody chose raises VALIDATION_FAILED.
 */
export function effectiveSettings(...parts: (PartialSettings | null | undefined)[]): ChunkSettings {
  const said = parts.filter(part => part !== null && part !== undefined)
  const strategy = first(said, 'chunk_strategy') ?? 'whole'
  if (strategy !== 'size' && strategy !== 'auto') {
    return { chunk_strategy: strategy, chunk_unit: null, chunk_size: null, chunk_overlap: null }
  }
  const ofStrategy = said.filter(part => (part.chunk_strategy ?? strategy) === strategy)
  const unit = first(ofStrategy, 'chunk_unit') ?? 'characters'
  const ofUnit = ofStrategy.filter(part => (part.chunk_unit ?? unit) === unit)
  const defaults = DEFAULTS[strategy][unit]
  const size = first(ofUnit, 'chunk_size') ?? defaults.size
  const overlap = first(ofUnit, 'chunk_overlap') ?? (defaults.overlap < size ? defaults.overlap : Math.floor(size / 5))
  if (overlap >= size) {
    raiseInvalid({
      code: 'TOO_LARGE',
      path: 'chunk_overlap',
      message: `must be smaller than chunk_size, which is ${size}`,
    })
  }
  return { chunk_strategy: strategy, chunk_unit: unit, chunk_size: size, chunk_overlap: overlap }
}

/** The chunk settings of something that has other fields too. */
export const chunkSettings = <T extends PartialSettings>({
  chunk_strategy,
  chunk_unit,
  chunk_size,
  chunk_overlap,
}: T): Pick<T, keyof ChunkSettings> => ({ chunk_strategy, chunk_unit, chunk_size, chunk_overlap })

const first = <F extends keyof ChunkSettings>(parts: PartialSettings[], field: F) =>
  parts.map(part => part[field]).find(value => value !== null && value !== undefined)
