import type { EvalRunRow } from './model.ts'
import { mcnemarTest, wilsonInterval } from './statistics.ts'
import type { ItemOutcome } from './store.ts'

/** Aggregated scores of a run. Items that ended with an error are excluded. */

/** Most groups of a run; items with other labels count as ungrouped. */
const MAX_GROUPS = 200

type Figures = { mean: number; pass_rate: number }

const fraction = (part: number, whole: number): number | null => (whole === 0 ? null : part / whole)

const countPassed = (outcomes: readonly ItemOutcome[]): number => outcomes.filter(({ passed }) => passed).length

/** Returns mean scores and pass rates by scorer, in order of first occurrence. */
function scorerFigures(outcomes: readonly ItemOutcome[]): Map<string, Figures> {
  const sums = new Map<string, { score: number; passed: number; count: number }>()
  for (const { scores } of outcomes)
    for (const { scorer, score, passed } of scores) {
      const sum = sums.get(scorer) ?? { score: 0, passed: 0, count: 0 }
      sum.score += score
      sum.passed += passed ? 1 : 0
      sum.count++
      sums.set(scorer, sum)
    }
  return new Map(
    [...sums].map(([scorer, { score, passed, count }]) => [scorer, { mean: score / count, pass_rate: passed / count }]),
  )
}

function aggregateFigures(outcomes: readonly ItemOutcome[]) {
  const passed = countPassed(outcomes)
  return {
    scorers: Object.fromEntries(scorerFigures(outcomes)),
    pass_rate: fraction(passed, outcomes.length),
    scored_item_count: outcomes.length,
    pass_rate_interval: wilsonInterval(passed, outcomes.length),
  }
}

/** Groups entries by label; keeps the largest groups if there are too many. */
function groupByLabel<T>(
  entries: readonly T[],
  labelOf: (entry: T) => unknown,
): { groups: Map<string, T[]>; ungrouped_item_count: number } {
  const byLabel = new Map<string, T[]>()
  for (const entry of entries) {
    const label = labelOf(entry)
    if (typeof label !== 'string') continue
    const group = byLabel.get(label)
    if (group) group.push(entry)
    else byLabel.set(label, [entry])
  }
  const groups =
    byLabel.size <= MAX_GROUPS
      ? byLabel
      : new Map([...byLabel].sort(([, a], [, b]) => b.length - a.length).slice(0, MAX_GROUPS))
  const groupedCount = [...groups.values()].reduce((sum, group) => sum + group.length, 0)
  return { groups, ungrouped_item_count: entries.length - groupedCount }
}

type Pair = { current: ItemOutcome; baseline: ItemOutcome }

/** Compares the outcomes of items scored by both runs. */
function comparePairs(pairs: readonly Pair[]) {
  const current = pairs.map(pair => pair.current)
  const baseline = pairs.map(pair => pair.baseline)
  const improved = pairs.filter(pair => pair.current.passed && !pair.baseline.passed).length
  const regressed = pairs.filter(pair => !pair.current.passed && pair.baseline.passed).length
  const baselineFigures = scorerFigures(baseline)
  const scorers = [...scorerFigures(current)].flatMap(([scorer, now]) => {
    const then = baselineFigures.get(scorer)
    return then
      ? [[scorer, { mean_delta: now.mean - then.mean, pass_rate_delta: now.pass_rate - then.pass_rate }] as const]
      : []
  })
  const isEmpty = pairs.length === 0
  return {
    compared_item_count: pairs.length,
    pass_rate_delta: isEmpty ? null : (countPassed(current) - countPassed(baseline)) / pairs.length,
    flipped: { improved, regressed },
    p_value: isEmpty ? null : mcnemarTest(improved, regressed),
    scorers: Object.fromEntries(scorers),
  }
}

const mapGroups = <T>(groups: ReadonlyMap<string, T[]>, figures: (group: readonly T[]) => object) =>
  Object.fromEntries([...groups].map(([label, group]) => [label, figures(group)]))

/** Compares a run with an earlier run on the items that both scored. */
function compareWithBaseline(
  run: Pick<EvalRunRow, 'group_by'>,
  outcomes: readonly ItemOutcome[],
  baseline: { run_id: string; outcomes: readonly ItemOutcome[] },
) {
  const baselineByItem = new Map(
    baseline.outcomes.filter(({ errored }) => !errored).map(outcome => [outcome.item_id, outcome]),
  )
  const pairs = outcomes.flatMap(current => {
    const before = baselineByItem.get(current.item_id)
    return before ? [{ current, baseline: before }] : []
  })
  const { compared_item_count, ...compared } = comparePairs(pairs)
  const { groups, ungrouped_item_count } = groupByLabel(pairs, pair => pair.current.label)
  return {
    run_id: baseline.run_id,
    compared_item_count,
    added_item_count: outcomes.length - pairs.length,
    removed_item_count: baselineByItem.size - pairs.length,
    ...compared,
    ...(run.group_by === null ? {} : { grouping: { groups: mapGroups(groups, comparePairs), ungrouped_item_count } }),
  }
}

/** Aggregates the outcomes of a run, by group and compared with a baseline where requested. */
export function aggregateScores(
  run: Pick<EvalRunRow, 'group_by'>,
  outcomes: readonly ItemOutcome[],
  baseline: { run_id: string; outcomes: readonly ItemOutcome[] } | null,
) {
  const scored = outcomes.filter(({ errored }) => !errored)
  const { groups, ungrouped_item_count } = groupByLabel(scored, ({ label }) => label)
  return {
    ...aggregateFigures(scored),
    ...(run.group_by === null
      ? {}
      : { grouping: { group_by: run.group_by, groups: mapGroups(groups, aggregateFigures), ungrouped_item_count } }),
    ...(baseline ? { baseline: compareWithBaseline(run, scored, baseline) } : {}),
  }
}

/** Returns whether a run passed; null without a threshold. */
export function runVerdict(
  { pass_threshold, max_error_rate, item_count }: Pick<EvalRunRow, 'pass_threshold' | 'max_error_rate' | 'item_count'>,
  { pass_rate, errored }: { pass_rate: number | null; errored: number },
): boolean | null {
  if (max_error_rate !== null && errored / item_count > max_error_rate) return false
  if (pass_threshold === null) return null
  return pass_rate !== null && pass_rate >= pass_threshold
}
