/** A row ranked by a channel; `key` is unique across sources. */
export type RankedRow = { key: string }

export type FusedRow = {
  key: string
  score: number
  signals: { vector?: number; lexical?: number }
}

const DAY_MS = 24 * 60 * 60_000

/**
 * Fuses the two channels by reciprocal rank, best rows first: every channel adds 1 / (k + rank) to the score of a row.
 * Scores of rows with a time in `changedAt` halve every half-life. Ties are broken by the number of channels, then by
 * lexical rank, because an exact word is a stronger match, then by cosine.
 * @param channels distinct rows, best first
 * @param options.k at least 0.001; larger values reduce the weight of the first ranks
 * @param options.changedAt unused without a half-life
 */
export function fuseRankings(
  channels: { vector: readonly RankedRow[]; lexical: readonly RankedRow[] },
  options: {
    k: number
    halfLifeDays: number
    now: Date
    changedAt: ReadonlyMap<string, Date>
    similarity: ReadonlyMap<string, number>
  },
): FusedRow[] {
  const { k, halfLifeDays, now, changedAt, similarity } = options
  const fused = new Map<string, FusedRow>()
  for (const channel of ['vector', 'lexical'] as const) {
    for (const [index, { key }] of channels[channel].entries()) {
      const row = fused.get(key) ?? { key, score: 0, signals: {} }
      row.score += 1 / (k + index + 1)
      row.signals[channel] = index + 1
      fused.set(key, row)
    }
  }
  for (const row of fused.values()) {
    const changed = changedAt.get(row.key)
    if (changed && halfLifeDays > 0)
      row.score *= 2 ** (-Math.max(0, now.getTime() - changed.getTime()) / DAY_MS / halfLifeDays)
  }
  const last = Number.POSITIVE_INFINITY
  return [...fused.values()].sort(
    (left, right) =>
      right.score - left.score ||
      Object.keys(right.signals).length - Object.keys(left.signals).length ||
      compare(left.signals.lexical ?? last, right.signals.lexical ?? last) ||
      compare(similarity.get(right.key) ?? -1, similarity.get(left.key) ?? -1) ||
      compare(left.key, right.key),
  )
}

const compare = <T extends string | number>(left: T, right: T): number => (left < right ? -1 : left > right ? 1 : 0)
