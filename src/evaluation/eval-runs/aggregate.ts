import type { EvalRunRow } from './model.ts'
import { mcnemarTest, wilsonInterval } from './statistics.ts'
import type { ItemOutcome } from './store.ts'

/** Figures of a run. Items that ended with an error are in none of them. */

/** Groups that a run shows: further labels count as none. */
const MOST_GROUPS = 200

type Figures = { mean: number; pass_rate: number }

const share = (part: number, whole: number): number | null => (whole === 0 ? null : part / whole)

const countPassed = (outcomes: readonly ItemOutcome[]): number => outcomes.filter(({ passed }) => passed).length

/** Means and shares by scorer, in the order in which scorers are met. */
function scorersOf(outcomes: readonly ItemOutcome[]): Map<string, Figures> {
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

function figuresOf(outcomes: readonly ItemOutcome[]) {
  const passed = countPassed(outcomes)
  return {
    scorers: Object.fromEntries(scorersOf(outcomes)),
    pass_rate: share(passed, outcomes.length),
    scored_item_count: outcomes.length,
    pass_rate_interval: wilsonInterval(passed, outcomes.length),
  }
}

/** Outcomes by their labels, those of most items first where there are too many. */
function grouped<T>(
  entries: readonly T[],
  labelOf: (entry: T) => unknown,
): { groups: Map<string, T[]>; ungrouped_item_count: number } {
  const all = new Map<string, T[]>()
  for (const entry of entries) {
    const label = labelOf(entry)
    if (typeof label !== 'string') continue
    const group = all.get(label)
    if (group) group.push(entry)
    else all.set(label, [entry])
  }
  const groups =
    all.size <= MOST_GROUPS ? all : new Map([...all].sort(([, a], [, b]) => b.length - a.length).slice(0, MOST_GROUPS))
  const shown = [...groups.values()].reduce((sum, group) => sum + group.length, 0)
  return { groups, ungrouped_item_count: entries.length - shown }
}

type Pair = { here: ItemOutcome; there: ItemOutcome }

/** How items that both runs scored differ. */
function comparison(pairs: readonly Pair[]) {
  const here = pairs.map(pair => pair.here)
  const there = pairs.map(pair => pair.there)
  const improved = pairs.filter(pair => pair.here.passed && !pair.there.passed).length
  const regressed = pairs.filter(pair => !pair.here.passed && pair.there.passed).length
  const before = scorersOf(there)
  const scorers = [...scorersOf(here)].flatMap(([scorer, now]) => {
    const then = before.get(scorer)
    return then
      ? [[scorer, { mean_delta: now.mean - then.mean, pass_rate_delta: now.pass_rate - then.pass_rate }] as const]
      : []
  })
  const none = pairs.length === 0
  return {
    compared_item_count: pairs.length,
    pass_rate_delta: none ? null : (countPassed(here) - countPassed(there)) / pairs.length,
    flipped: { improved, regressed },
    p_value: none ? null : mcnemarTest(improved, regressed),
    scorers: Object.fromEntries(scorers),
  }
}

const ofGroups = <T>(groups: ReadonlyMap<string, T[]>, figures: (group: readonly T[]) => object) =>
  Object.fromEntries([...groups].map(([label, group]) => [label, figures(group)]))

/** A run compared with an earlier one, over the items that both have scored. */
function againstBaseline(
  run: Pick<EvalRunRow, 'group_by'>,
  here: readonly ItemOutcome[],
  baseline: { run_id: string; outcomes: readonly ItemOutcome[] },
) {
  const there = new Map(baseline.outcomes.filter(({ errored }) => !errored).map(each => [each.item_id, each]))
  const pairs = here.flatMap(each => {
    const before = there.get(each.item_id)
    return before ? [{ here: each, there: before }] : []
  })
  const { compared_item_count, ...compared } = comparison(pairs)
  const { groups, ungrouped_item_count } = grouped(pairs, pair => pair.here.label)
  return {
    run_id: baseline.run_id,
    compared_item_count,
    added_item_count: here.length - pairs.length,
    removed_item_count: there.size - pairs.length,
    ...compared,
    ...(run.group_by === null ? {} : { grouping: { groups: ofGroups(groups, comparison), ungrouped_item_count } }),
  }
}

/** What came of a run as a whole. */
export function aggregateScores(
  run: Pick<EvalRunRow, 'group_by'>,
  outcomes: readonly ItemOutcome[],
  baseline: { run_id: string; outcomes: readonly ItemOutcome[] } | null,
) {
  const scored = outcomes.filter(({ errored }) => !errored)
  const { groups, ungrouped_item_count } = grouped(scored, ({ label }) => label)
  return {
    ...figuresOf(scored),
    ...(run.group_by === null
      ? {}
      : { grouping: { group_by: run.group_by, groups: ofGroups(groups, figuresOf), ungrouped_item_count } }),
    ...(baseline ? { baseline: againstBaseline(run, scored, baseline) } : {}),
  }
}

/** The verdict on a run; null without a threshold. */
export function verdictOf(
  { pass_threshold, max_error_rate, item_count }: Pick<EvalRunRow, 'pass_threshold' | 'max_error_rate' | 'item_count'>,
  { pass_rate, errored }: { pass_rate: number | null; errored: number },
): boolean | null {
  if (max_error_rate !== null && errored / item_count > max_error_rate) return false
  if (pass_threshold === null) return null
  return pass_rate !== null && pass_rate >= pass_threshold
}
