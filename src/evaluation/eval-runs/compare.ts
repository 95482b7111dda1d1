import { z } from 'zod'
import { booleanQuery, pageOf, pageResult } from '#core/api/lists.ts'
import type { Context } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import type { EvalRow } from '../evals/model.ts'
import { EvalResult, evalResultKind } from './model.ts'
import { listExistingRuns, listResultsOfItems } from './store.ts'

const MAX_RUNS = 5

export const comparisonQuery = z.object({
  runs: z
    .string()
    .min(1)
    .max(500)
    .describe(`IDs of 1 to ${MAX_RUNS} runs of the eval, separated by commas`)
    .meta({ example: 'evrun_01k5p3vd7r9hj2x8m4qcw6tz0e' }),
  changed: booleanQuery
    .optional()
    .describe(
      'Whether to return only items whose outcome (passed, failed or error) differs between the runs; false returns only items with equal outcomes',
    ),
})

const Result = EvalResult.omit({ input: true, expected_output: true, dataset_item_id: true })

const ComparedItem = z
  .object({
    dataset_item_id: z.string().nullable().describe('ID of the dataset item. Null after its deletion.'),
    input: EvalResult.shape.input,
    expected_output: EvalResult.shape.expected_output,
    changed: z.boolean().describe('Whether the outcome (passed, failed or error) differs between the runs'),
    results: z
      .array(Result.nullable())
      .describe('Results in the order of the runs; null for a run without a result of the item'),
  })
  .meta({ id: 'EvalComparedItem' })

export const EvalComparison = pageOf(ComparedItem)

/** @throws VALIDATION_FAILED for no run or more than five */
function parseRunIds(text: string): string[] {
  const ids = [...new Set(text.split(',').map(id => id.trim()))].filter(id => id !== '')
  if (ids.length < 1 || ids.length > MAX_RUNS)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'runs', message: `must contain 1 to ${MAX_RUNS} run IDs` })
  return ids
}

/** Returns a page of items with their results in each run. */
export async function compareRuns(
  context: Context<z.output<typeof comparisonQuery>, undefined, EvalRow>,
): Promise<unknown> {
  const { db, query, resource } = context
  const ids = parseRunIds(query.runs)
  const found = await listExistingRuns(db, resource.id, ids)
  const missing = ids.find(id => !found.includes(id))
  if (missing !== undefined)
    raiseInvalid({ code: 'NOT_FOUND', path: 'runs', message: `contains ${missing}, which is not a run of this eval` })
  // Unique index on runs and items.
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
  const page = items.data as { item_id: string; changed: boolean }[]
  const results = await listResultsOfItems(
    db,
    ids,
    page.map(({ item_id }) => item_id),
  )
  const byItem = Map.groupBy(results, ({ item_id }) => item_id)
  const data = page.flatMap(({ item_id, changed }) => {
    const itemResults = byItem.get(item_id)
    // Deleted since the page was read.
    if (!itemResults) return []
    const results = ids.map(id => itemResults.find(result => result.eval_run_id === id) ?? null)
    // Input and expected output of the last run that has a result.
    const { dataset_item_id, input, expected_output } = results.findLast(result => result !== null) ?? itemResults[0]
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
