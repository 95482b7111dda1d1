import { z } from 'zod'
import { type UsageComponent, type UsageDraft, wholeOf } from '#control/usage/meter.ts'
import { type PricedUsage, totalCost } from '#control/usage/price-usage.ts'
import { RunTotals, runTotals, totalsOfRuns, totalsOfTrees } from '#control/usage/report-store.ts'
import type { UsageSums } from '#control/usage/totals.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import type { RunRow } from '../model.ts'

/** Usage of a run with its nested runs, and without them. */
export type RunUsage = { usage: UsageSums | null; usage_own: UsageSums | null }

const usageOf = (totals: readonly RunTotals[]): RunUsage => ({
  usage: sumTotals(totals),
  usage_own: sumTotals(totals.filter(({ own }) => own)),
})

/**
 * Returns the usage of a run, with and without its nested runs; null if there is none.
 * @param unwritten usage that is not written yet
 * @param written all other usage, if the caller has read it
 */
export async function usageOfRun(
  db: Queryable,
  { id }: Pick<RunRow, 'id'>,
  unwritten: readonly PricedUsage[] = [],
  written: readonly RunTotals[] | null = null,
): Promise<RunUsage> {
  const totals = written ?? (await totalsOfRuns(db, id, treeOf(id)))
  return usageOf([...totals, ...unwritten.map(totalsOf)])
}

const treeOf = (id: string): Fragment => sql.fragment`
    with recursive tree as (
      select ${id}::text as id
      union all
      select r.id from tree join orchestration_runs r on r.parent_id = tree.id)
    select id from tree`

/** Written usage of a run with its nested runs, at a time of the database. */
export type WrittenUsage = { now: string; totals: readonly RunTotals[] }

const Time = z.object({ now: z.string() })
const writtenRow = sql.type(z.union([RunTotals.extend(Time.shape), Time.extend({ own: z.null() })]))

/** Returns the written usage of a run. */
export async function readWrittenUsage(db: Queryable, { id }: Pick<RunRow, 'id'>): Promise<WrittenUsage> {
  const rows = await db.any(writtenRow`
    select n.now, t.* from (select now()::timestamptz(3) as now) n left join (${runTotals(id, treeOf(id))}) t on true`)
  return { now: rows[0].now, totals: rows.flatMap(row => (row.own === null ? [] : [row])) }
}

/** Returns the usage of runs with their nested runs, by run ID; runs without usage are missing. One statement. */
export async function usageOfRuns(db: Queryable, ids: readonly string[]): Promise<ReadonlyMap<string, RunUsage>> {
  if (ids.length === 0) return new Map()
  const trees = sql.fragment`
    with recursive tree as (
      select id as root, id from unnest(${sql.array([...ids], 'text')}) id
      union all
      select tree.root, r.id from tree cross join lateral (
        select r.id from orchestration_runs r where r.parent_id = tree.id offset 0) r)
    select root, id from tree`
  const totals = Map.groupBy(await totalsOfTrees(db, trees), ({ root }) => root)
  return new Map([...totals].map(([id, of]) => [id, usageOf(of)]))
}

function totalsOf(priced: PricedUsage): RunTotals {
  const components: UsageComponent[] = JSON.parse(priced.row.components as string)
  const of = (name: string) =>
    components.reduce((sum, { component, quantity }) => (wholeOf(component) === name ? sum + quantity : sum), 0)
  return {
    own: true,
    events: 1,
    cost_usd: totalCost([priced]),
    uncached: of('input_tokens'),
    cached: of('cached_tokens'),
    written: of('cache_write_tokens'),
    output: of('output_tokens'),
    reasoning: of('reasoning_tokens'),
  }
}

export function sumTotals(totals: readonly RunTotals[]): UsageSums | null {
  if (totals.length === 0) return null
  const sum = (key: 'uncached' | 'cached' | 'written' | 'output' | 'reasoning') =>
    totals.reduce((total, counts) => total + counts[key], 0)
  const costs = totals.flatMap(({ cost_usd }) => cost_usd ?? [])
  return {
    cost_usd: costs.length === 0 ? null : costs.reduce((total, cost) => total + cost, 0),
    input_tokens: sum('uncached') + sum('cached') + sum('written'),
    uncached_input_tokens: sum('uncached'),
    output_tokens: sum('output'),
    cached_tokens: sum('cached'),
    cache_write_tokens: sum('written'),
    reasoning_tokens: sum('reasoning'),
  }
}

/**
 * Returns the compute usage of a node execution: worker time without waits, at least 1 ms, in one event for all polls
 * and deliveries.
 */
export const computeOf = (
  run: Pick<RunRow, 'id' | 'project_id' | 'trigger_id'>,
  { node_id, attempt, compute_seconds }: Pick<NodeExecutionRow, 'node_id' | 'attempt' | 'compute_seconds'>,
): UsageDraft => ({
  idempotency_key: `compute:${run.id}:${node_id}:${attempt}`,
  project_id: run.project_id,
  meter_type: 'compute_execution',
  provider: 'platform',
  model: 'compute-second',
  source: 'orchestration',
  orchestration_run_id: run.id,
  node_id,
  trigger_id: run.trigger_id,
  components: [
    {
      component: 'compute_second',
      quantity: Math.max(1, Math.round(compute_seconds * 1000)) / 1000,
      unit: 'compute_second',
      billable: true,
    },
  ],
})
