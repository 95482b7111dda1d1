import { z } from 'zod'
import { selectList } from '../../../core/api/kind.ts'
import { type Fragment, type Queryable, sql } from '../../../core/db/sql.ts'
import { RunRow as RunShape } from '../model.ts'

/** What of a run, and of its attempts, is in a list of many; of larger ones only what says how they stand. */
const LISTED_BYTES = 128 * 1024
/** What an attempt counts beside its input and output. */
const ATTEMPT_BYTES = 512

const bytesIn = (...columns: string[]): Fragment =>
  sql.fragment`${sql.join(
    columns.map(column => sql.fragment`coalesce(octet_length(t.${sql.identifier([column])}::text), 0)`),
    sql.fragment` + `,
  )}`

const isListed = sql.fragment`${bytesIn('input', 'metadata', 'written', 'outcomes', 'required_actions')} <= ${LISTED_BYTES}`

/**
 * The columns of runs in a list: values, unless they are large or not wanted. Without its outcomes a run is shown without
 * its state.
 */
export const runListColumns = (values: boolean): Fragment => {
  const kept = values ? isListed : sql.fragment`false`
  const shown = (column: string) => sql.fragment`case when ${kept} then t.${sql.identifier([column])} end`
  const small = (column: string) => sql.fragment`case when ${isListed} then t.${sql.identifier([column])} end`
  return selectList(Object.keys(RunShape.shape), {
    input: small('input'),
    metadata: small('metadata'),
    output: small('output'),
    written: shown('written'),
    outcomes: shown('outcomes'),
    required_actions: sql.fragment`case when ${isListed} then t.required_actions else (
      select json_agg(a.value::jsonb || '{"context": null}') from json_array_elements(t.required_actions::json) a) end`,
  })
}

/** Runs whose attempts are too large for a list. By orchestration_node_executions_run. */
export const largeRuns = async (db: Queryable, runIds: readonly string[]): Promise<ReadonlySet<string>> =>
  new Set(
    await db.anyFirst(sql.type(z.strictObject({ run_id: z.string() }))`
      select t.run_id from orchestration_node_executions t where t.run_id = any(${sql.array([...runIds], 'text')})
      group by t.run_id having sum(${ATTEMPT_BYTES}::int + ${bytesIn('input', 'output', 'error')}) > ${LISTED_BYTES}`),
  )
