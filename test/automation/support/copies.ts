import { identifying, type Queryable, sql } from '../../../src/core/db/sql.ts'

/**
 * As many copies of a run that no other run started, with its attempts, as rows alone: what would take minutes over HTTP.
 * Returns their ids.
 */
export async function copyRun(db: Queryable, id: string, count: number): Promise<readonly string[]> {
  const ids = await db.anyFirst(identifying`
    insert into orchestration_runs
    select c.* from orchestration_runs r, generate_series(1, ${count}) n,
      json_populate_record(r, json_build_object('id', r.id || '_' || n, 'root_id', r.id || '_' || n)) c
    where r.id = ${id} returning id`)
  await db.query(sql.unsafe`
    insert into orchestration_node_executions
    select c.* from orchestration_node_executions e, generate_series(1, ${count}) n,
      json_populate_record(e, json_build_object('id', e.id || '_' || n, 'run_id', ${id} || '_' || n, 'callback_hash', null)) c
    where e.run_id = ${id}`)
  return ids
}
