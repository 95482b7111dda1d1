import { idStatement, type Queryable, sql } from '#core/db/sql.ts'

/**
 * As many copies of a run that no other run started, with its attempts, as rows alone: what would take minutes over HTTP.
 * Returns their ids.
 */
export async function copyRun(db: Queryable, id: string, count: number): Promise<readonly string[]> {
  const ids = await db.anyFirst(idStatement`
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

/**
 * As many copies of a run that another one started, next to it, with everything below it and all attempts, as rows alone. Their
 * tool contexts are left out.
 */
export async function copyTree(db: Queryable, id: string, count: number): Promise<void> {
  const tree = sql.fragment`tree as (
    select id from orchestration_runs where id = ${id}
    union all select r.id from tree join orchestration_runs r on r.parent_id = tree.id)`
  const isTop = sql.fragment`r.id = ${id}`
  await db.query(sql.unsafe`
    with recursive ${tree}
    insert into orchestration_runs
    select c.* from tree join orchestration_runs r on r.id = tree.id, generate_series(1, ${count}) n,
      json_populate_record(r, json_build_object('id', r.id || '_' || n, 'context', null,
        'parent_id', case when ${isTop} then r.parent_id else r.parent_id || '_' || n end,
        'parent_execution_id', case when ${isTop} then r.parent_execution_id else r.parent_execution_id || '_' || n end,
        'parent_index', case when ${isTop} then r.parent_index + n else r.parent_index end)) c`)
  await db.query(sql.unsafe`
    with recursive ${tree}
    insert into orchestration_node_executions
    select c.* from tree join orchestration_node_executions e on e.run_id = tree.id, generate_series(1, ${count}) n,
      json_populate_record(e, json_build_object('id', e.id || '_' || n, 'run_id', e.run_id || '_' || n, 'callback_hash', null,
        'generation_id', null)) c`)
}
