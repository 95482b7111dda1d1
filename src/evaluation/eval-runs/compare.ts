import { z } from 'zod'
import { raiseInvalid } from '../../core/api/errors.ts'
import { booleanQuery, pageOf, pageResult } from '../../core/api/lists.ts'
import type { Context } from '../../core/api/operation.ts'
import { sql } from '../../core/db/sql.ts'
import type { EvalRow } from '../evals/model.ts'
import { EvalResult, evalResultKind } from './model.ts'
import { resultsOf, runsById } from './store.ts'

/** Runs that are compared at once. */
const MOST_RUNS = 5

export const comparisonQuery = z.object({
  runs: z.string().min(1).max(500).describe(`Ids of 1 to ${MOST_RUNS} runs of the eval, apart by commas`),
  changed: booleanQuery
    .optional()
    .describe('Only items of which the runs differ in whether they passed or ended with an error, or only others'),
})

const Result = EvalResult.omit({ input: true, expected_output: true, dataset_item_id: true })

const Compared = z
  .object({
    dataset_item_id: z.string().nullable().describe('Null once the item is deleted'),
    input: EvalResult.shape.input,
    expected_output: EvalResult.shape.expected_output,
    changed: z.boolean().describe('Whether the runs differ in whether it passed or ended with an error'),
    results: z.array(Result.nullable()).describe('In the order of the runs; null where a run has none'),
  })
  .meta({ id: 'EvalComparedItem' })

export const EvalComparison = pageOf(Compared)

/** The ids that a query names. Raises VALIDATION_FAILED. */
function namedRuns(text: string): string[] {
  const ids = [...new Set(text.split(',').map(id => id.trim()))].filter(id => id !== '')
  if (ids.length < 1 || ids.length > MOST_RUNS)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'runs', message: `must name 1 to ${MOST_RUNS} runs` })
  return ids
}

/** A page of items with what each run made of them. */
export async function compareRuns(
  context: Context<z.output<typeof comparisonQuery>, undefined, EvalRow>,
): Promise<unknown> {
  const { db, query, resource } = context
  const ids = namedRuns(query.runs)
  const found = await runsById(db, resource.id, ids)
  const missing = ids.find(id => !found.includes(id))
  if (missing !== undefined)
    raiseInvalid({ code: 'NOT_FOUND', path: 'runs', message: `${missing} is no run of the eval` })
  // By the unique index of runs and items.
  const items = await pageResult<{ item_id: string; changed: boolean }>(context, {
    columns: sql.fragment`c.item_id, c.changed`,
    from: sql.fragment`(
      select t.item_id, sum(t.bytes) as bytes,
        count(distinct case when t.error is not null then 'errored' when t.passed then 'passed' else 'failed' end) > 1 as changed
      from eval_results t
      where t.eval_run_id = any(${sql.array(ids, 'text')}) and t.state = 'done' group by t.item_id) as c`,
    filters: [query.changed !== undefined && sql.fragment`c.changed = ${query.changed}`],
    order: sql.fragment`c.item_id`,
    bytes: sql.fragment`c.bytes`,
    present: row => row,
  })
  const shown = items.data as { item_id: string; changed: boolean }[]
  const results = await resultsOf(
    db,
    ids,
    shown.map(({ item_id }) => item_id),
  )
  const byItem = Map.groupBy(results, ({ item_id }) => item_id)
  const data = shown.flatMap(({ item_id, changed }) => {
    const of = byItem.get(item_id)
    // Gone since the page was read.
    if (!of) return []
    const results = ids.map(id => of.find(result => result.eval_run_id === id) ?? null)
    // As it was asked last.
    const { dataset_item_id, input, expected_output } = results.findLast(result => result !== null) ?? of[0]
    return {
      dataset_item_id,
      input,
      expected_output,
      changed,
      results: results.map(result => {
        if (result === null) return null
        const {
          input: _i,
          expected_output: _e,
          dataset_item_id: _d,
          ...rest
        } = evalResultKind.present(result) as z.output<typeof EvalResult>
        return rest
      }),
    }
  })
  return { ...items, data }
}
