import { z } from 'zod'
import { selectList } from '#core/api/kind.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { StatementWrite } from '#core/writes/writer.ts'
import { toolKind } from '#execution/tools/model.ts'
import { jsonColumns, type NodeExecutionRow } from './engine/node-execution-store.ts'
import { isStopping, jsonObject, LIVE, RUN_STATUSES, type RunRow, RunRow as RunShape } from './model.ts'

export const runColumns = selectList(Object.keys(RunShape.shape))

/** Runs that a node execution started, counted by status. */
export const ChildCounts = z.object({
  execution_id: z.string(),
  started: z.int(),
  queued: z.int(),
  running: z.int(),
  sleeping: z.int(),
  awaiting: z.int(),
  succeeded: z.int(),
  /** First run that awaits input, and first run that ended without success. */
  awaiting_id: z.string().nullable(),
  failed_id: z.string().nullable(),
})
export type ChildCounts = z.output<typeof ChildCounts>

const LoadedRun = RunShape.extend({
  now: z.string(),
  project_paused: z.boolean(),
  project_pause_reason: z.string().nullable(),
  max_concurrent_runs: z.int().nullable(),
  max_run_depth: z.int().nullable(),
  /** Whether the run is about to be cancelled and must start nothing more. */
  stopping: z.boolean(),
  /** Node executions of the project with a valid lease. */
  project_leases: z.int(),
  /** Revision in the snapshot of the statement. It differs from `revision` if the statement waited for the lock. */
  seen_revision: z.int(),
  open: z.array(z.custom<NodeExecutionRow>()),
  children: z.array(ChildCounts),
})
export type LoadedRun = z.output<typeof LoadedRun>
const loadedRow = sql.type(LoadedRun)

/**
 * Locks and loads a run with its unapplied node executions and the counts of its nested runs. Returns null for a
 * missing run, and for a driven run unless the caller holds the records of its driver (`driven`). By primary keys,
 * orchestration_node_executions_run and orchestration_runs_parent.
 */
export async function loadRun(db: Queryable, runId: string, driven = false): Promise<LoadedRun | null> {
  const read = () =>
    db.maybeOne(loadedRow`
      select ${runColumns}, now() as now, p.paused_at is not null as project_paused, p.pause_reason as project_pause_reason, p.max_concurrent_runs, p.max_run_depth, ${isStopping('t')} as stopping,
        (select count(*) from orchestration_node_executions o where o.project_id = t.project_id and o.leased_until > now()) as project_leases,
        (select r.revision from orchestration_runs r where r.id = t.id) as seen_revision,
        coalesce((
          select json_agg(e order by e.created_at, e.id) from orchestration_node_executions e
          where e.run_id = t.id and not e.applied), '[]') as open,
        coalesce((
          select json_agg(c) from (
            select c.parent_execution_id as execution_id, count(*) as started,
              count(*) filter (where c.status = 'queued') as queued,
              count(*) filter (where c.status = 'running') as running,
              count(*) filter (where c.status = 'sleeping') as sleeping,
              count(*) filter (where c.status = 'awaiting_input') as awaiting,
              count(*) filter (where c.status = 'succeeded') as succeeded,
              (array_agg(c.id order by c.parent_index) filter (where c.status = 'awaiting_input'))[1] as awaiting_id,
              (array_agg(c.id order by c.parent_index) filter (where c.status in ('failed', 'cancelled', 'expired')))[1] as failed_id
            from orchestration_runs c where c.parent_id = t.id and c.parent_node_id = any(t.active_nodes)
            group by c.parent_execution_id) c), '[]') as children
      from orchestration_runs t join projects p on p.id = t.project_id
      where t.id = ${runId} and (t.driver is null or ${driven}) for update of t`)
  const first = await read()
  // The statement waited for the lock, so its snapshot of the other tables is stale.
  return first && first.seen_revision !== first.revision ? read() : first
}

/**
 * Returns the fence of a one-statement advance: run and node execution are unchanged, the project is not paused, and
 * the claim is still valid. Locks both rows. Reads the tool of the next node, if the project has it.
 */
export const revisionUnchanged = (
  run: Pick<RunRow, 'id' | 'project_id' | 'revision'>,
  { id, deliveries, polls }: Pick<NodeExecutionRow, 'id' | 'deliveries' | 'polls'>,
  toolId: string | null,
): StatementWrite => ({
  ctes: [
    sql.fragment`unchanged as (
      select t.id from orchestration_runs t cross join orchestration_node_executions e
      where t.id = ${run.id} and t.revision = ${run.revision} and e.id = ${id} and e.status = 'running'
        and e.deliveries = ${deliveries} and e.polls = ${polls}
        and exists (select from projects p where p.id = t.project_id and p.paused_at is null)
        and not ${isStopping('t')}
      for update of t, e)`,
  ],
  guard: sql.fragment`exists (select from unchanged)`,
  // Rounded to milliseconds, as the columns are.
  columns: sql.fragment`now()::timestamptz(3) as now, (
    select to_json(tool) from (
      select ${toolKind.columns} from tools t where t.id = ${toolId} and t.project_id = ${run.project_id}) tool) as tool`,
})

/** Columns of a run that change after the insert. */
const CHANGING = [
  'status',
  'revision',
  'tool_context',
  'context',
  'written',
  'outcomes',
  'active_nodes',
  'required_actions',
  'output',
  'error',
  'failed_node_id',
  'steps',
  'rounds',
  'trace_id',
  'awaited',
  'pause_requested_at',
  'pause_reason',
  'paused_with_project',
  'wake_at',
  'due_at',
  'queued_at',
  'started_at',
  'completed_at',
  'updated_at',
] as const satisfies readonly (keyof RunRow)[]

/** Whether a column changes between two nodes of a run. */
const isStep = (column: keyof RunRow): boolean =>
  ['revision', 'outcomes', 'active_nodes', 'steps', 'rounds', 'updated_at'].includes(column)

const changes = jsonColumns('orchestration_runs', CHANGING)

/** Large values, which are replaced when they change. */
const isLarge = (column: keyof RunRow): boolean => column === 'outcomes' || column === 'written'

const differs = (column: keyof RunRow, one: RunRow, other: RunRow): boolean =>
  one[column] !== other[column] && (isLarge(column) || JSON.stringify(one[column]) !== JSON.stringify(other[column]))

/** Whether a column changed that can change without a node execution. */
export const hasChanged = (before: RunRow, run: RunRow): boolean =>
  CHANGING.some(column => !isLarge(column) && differs(column, before, run))

/**
 * Returns the CTE that updates a locked run. Columns that seldom change are written only if one has changed: reading all of
 * them from JSON takes 50 us, as long as the update. `estimated`: see `jsonColumns`.
 */
export function runUpdate(before: RunRow, run: RunRow, guard: Fragment, estimated: string | null): Fragment {
  if (CHANGING.some(column => !isStep(column) && differs(column, before, run))) {
    const changed = Object.fromEntries(CHANGING.map(column => [column, run[column]]))
    return sql.fragment`
      update orchestration_runs t set (${changes.names}) = row(${changes.values(estimated)})
      from ${changes.source(changed, estimated)} where t.id = ${run.id} and ${guard}`
  }
  const { revision, outcomes, active_nodes, steps, rounds, updated_at } = run
  return sql.fragment`
    update orchestration_runs t set revision = ${revision}, outcomes = ${JSON.stringify(outcomes)}::json,
      active_nodes = ${sql.array(active_nodes, 'text')}, steps = ${steps}, rounds = ${rounds},
      updated_at = ${estimated === null ? sql.fragment`${updated_at}::timestamptz` : sql.fragment`now()`}
    where t.id = ${run.id} and ${guard}`
}

/** Returns the CTE that inserts runs. */
export const runInsert = (runs: readonly RunRow[], guard: Fragment): Fragment => sql.fragment`
  insert into orchestration_runs
  select r.* from json_populate_recordset(null::orchestration_runs, ${JSON.stringify(runs)}::json) r where ${guard}`

const treeCountRow = sql.type(z.strictObject({ roots: z.int(), own: z.boolean() }))

/**
 * Counts the running trees of a project other than one tree, and whether that tree is running. By
 * orchestration_runs_live.
 */
export const countRunningTrees = (db: Queryable, projectId: string, rootId: string) =>
  db.one(treeCountRow`
    select count(distinct root_id) filter (where root_id <> ${rootId}) as roots, coalesce(bool_or(root_id = ${rootId}), false) as own
    from orchestration_runs where project_id = ${projectId} and status = 'running'`)

/** Serializes changes of the run slots of a project until the transaction ends. */
export const lockRunSlots = (db: Queryable, projectId: string) =>
  db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended(${`runs ${projectId}`}, 0))`)

export const RunRef = z.strictObject({ id: z.string(), project_id: z.string() })
export type RunRef = z.output<typeof RunRef>
const runRefRow = sql.type(RunRef)

/** Runs of a tree woken by one released slot. */
const WAKE_LIMIT = 100

/**
 * Lists the queued runs of the tree that has waited longest for a slot of the project; running trees have one. By
 * orchestration_runs_live and orchestration_runs_root.
 */
export const listNextQueuedTree = (db: Queryable, projectId: string, exceptRoot: string): Promise<readonly RunRef[]> =>
  db.any(runRefRow`
    with next as (
      select q.root_id from orchestration_runs q
      where q.project_id = ${projectId} and q.status = 'queued' and q.queued_at is not null and q.root_id <> ${exceptRoot}
        and not exists (
          select from orchestration_runs o
          where o.project_id = q.project_id and o.status = 'running' and o.root_id = q.root_id)
      order by q.queued_at limit 1)
    select t.id, t.project_id from next join orchestration_runs t on t.root_id = next.root_id
    where t.status = 'queued' order by t.queued_at limit ${WAKE_LIMIT}`)

const childRow = sql.type(z.object({ id: z.string(), status: z.enum(RUN_STATUSES), error: RecordedFailure.nullable() }))

/** Returns status and error of a nested run. */
export const findChild = (db: Queryable, id: string) =>
  db.maybeOne(childRow`select id, status, error from orchestration_runs where id = ${id}`)

const outputRow = sql.type(z.object({ output: jsonObject.nullable() }))

/**
 * Returns the outputs of the runs that a node execution started, in collection order; none if they exceed `mostBytes`
 * in total. By orchestration_runs_parent.
 */
export const listChildOutputs = (db: Queryable, runId: string, executionId: string, mostBytes: number) =>
  db.any(outputRow`
    with below as materialized (
      select id, octet_length(output::text) as bytes from orchestration_runs
      where parent_id = ${runId} and parent_execution_id = ${executionId})
    select r.output from below b join orchestration_runs r on r.id = b.id
    where (select coalesce(sum(bytes), 0) from below) <= ${mostBytes} order by r.parent_index`)

/** Lists the runs of a project that have waited longest for a slot. By orchestration_runs_live. */
export const listLongestQueued = (db: Queryable, projectId: string, limit: number): Promise<readonly RunRef[]> =>
  db.any(runRefRow`
    select id, project_id from orchestration_runs
    where project_id = ${projectId} and status = 'queued' and queued_at is not null
    order by queued_at limit ${limit}`)

/**
 * SQL condition that a live run exists or an orchestration is being deleted. By orchestration_runs_live and
 * orchestrations_deletion.
 */
export const hasLiveRuns: Fragment = sql.fragment`(
  exists (select from orchestration_runs where status in ${LIVE})
  or exists (select from orchestrations where managed_by = 'deletion'))`

const stateRow = sql.type(RunShape.pick({ input: true, outcomes: true, written: true }))

/** Returns the columns of a run that form the state of its expressions. */
export const findState = (db: Queryable, runId: string) =>
  db.maybeOne(stateRow`select input, outcomes, written from orchestration_runs where id = ${runId}`)

/** Lists live runs of a project after an ID, in ID order. By orchestration_runs_live. */
export const listLiveRuns = (
  db: Queryable,
  projectId: string,
  after: string,
  limit: number,
): Promise<readonly RunRef[]> =>
  db.any(runRefRow`
    select id, project_id from orchestration_runs
    where project_id = ${projectId} and id > ${after} and status in ${LIVE}
    order by id limit ${limit}`)

/**
 * Applies the pause of a project to the live root runs among the given ones, unless they are paused already. Locks in ID
 * order.
 */
export const pauseWithProject = (db: Queryable, ids: readonly string[], reason: string | null) =>
  db.query(voidStatement`
    with locked as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and parent_id is null and pause_requested_at is null
        and status in ${LIVE} order by id for update)
    update orchestration_runs t set pause_requested_at = now(), pause_reason = ${reason}, paused_with_project = true,
      revision = t.revision + 1, updated_at = now()
    from locked where t.id = locked.id`)

/** Ends the pauses that runs inherited from their project. Locks in ID order. */
export const resumeWithProject = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`
    with locked as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and paused_with_project
        and status in ${LIVE} order by id for update)
    update orchestration_runs t set pause_requested_at = null, pause_reason = null, paused_with_project = false,
      revision = t.revision + 1, updated_at = now()
    from locked where t.id = locked.id`)

/** Deletes ended runs with their descendants. */
export const deleteRuns = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`delete from orchestration_runs where id = any(${sql.array([...ids], 'text')})`)

/** SQL condition that a turn answered a node of a live run. By orchestration_node_executions_generation. */
export const isTurnOfLiveRun = ({ id }: { id: Fragment }): Fragment => sql.fragment`exists (
  select from orchestration_node_executions e join orchestration_runs r on r.id = e.run_id
  where e.generation_id = ${id} and r.status in ${LIVE})`

/** Size above which the values of a run, and its node executions, are left out of a list. */
const LISTED_BYTES = 128 * 1024
/** Bytes that a node execution counts in addition to its input, output and error. */
const EXECUTION_BYTES = 512

const bytesIn = (...columns: string[]): Fragment =>
  sql.fragment`${sql.join(
    columns.map(column => sql.fragment`coalesce(octet_length(t.${sql.identifier([column])}::text), 0)`),
    sql.fragment` + `,
  )}`

const isListed = sql.fragment`${bytesIn('input', 'metadata', 'written', 'outcomes', 'required_actions')} <= ${LISTED_BYTES}`

/** Returns the columns of runs in a list. Large values are null, as are state and outcomes without `values`. */
export const runListColumns = (values: boolean): Fragment => {
  const hasState = values ? isListed : sql.fragment`false`
  const stateColumn = (column: string) => sql.fragment`case when ${hasState} then t.${sql.identifier([column])} end`
  const valueColumn = (column: string) => sql.fragment`case when ${isListed} then t.${sql.identifier([column])} end`
  return selectList(Object.keys(RunShape.shape), {
    input: valueColumn('input'),
    metadata: valueColumn('metadata'),
    output: valueColumn('output'),
    written: stateColumn('written'),
    outcomes: stateColumn('outcomes'),
    required_actions: sql.fragment`case when ${isListed} then t.required_actions else (
      select json_agg(a.value::jsonb || '{"context": null}') from json_array_elements(t.required_actions::json) a) end`,
  })
}

/** Returns the runs whose node executions are too large for a list. By orchestration_node_executions_run. */
export const listLargeRuns = async (db: Queryable, runIds: readonly string[]): Promise<ReadonlySet<string>> =>
  new Set(
    await db.anyFirst(sql.type(z.strictObject({ run_id: z.string() }))`
      select t.run_id from orchestration_node_executions t where t.run_id = any(${sql.array([...runIds], 'text')})
      group by t.run_id having sum(${EXECUTION_BYTES}::int + ${bytesIn('input', 'output', 'error')}) > ${LISTED_BYTES}`),
  )
