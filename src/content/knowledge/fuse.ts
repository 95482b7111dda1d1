/** A row as a channel found it. `key` names it over all sources. */
export type RankedRow = { key: string }

export type FusedRow = {
  key: string
  score: number
  signals: { vector?: number; lexical?: number }
}

const DAY_MS = 24 * 60 * 60_000

/**
 * Reciprocal rank fusion of the two channels: every channel that ranked a row gives it 1 / (k + rank), and
 * rows whose age counts lose half of it every half-life. Ties go to the row that more channels found, then to the better
 * lexical rank: an exact word beats a likeness. Rows are sorted, best first.
 * @param channels rows, best first, each once
 * @param options.k of at least a thousandth; the larger, the less the first ranks stand out
 * @param options.changedAt of the rows whose age counts; without a half-life it is not looked at
 * @param options.similarity cosines, the last word on rows that are equal in everything else
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
