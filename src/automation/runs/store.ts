import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { selectList } from '../../core/api/kind.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { StatementWrite } from '../../core/db/writer.ts'
import { columnList, type NodeExecutionRow, timestampColumns } from './engine/node-execution-store.ts'
import { isStopping, jsonObject, LIVE, RUN_STATUSES, type RunRow, RunRow as RunShape } from './model.ts'

export const runColumns = selectList(Object.keys(RunShape.shape))

/** Runs that an attempt of a node started, by what has become of them. */
export const Children = z.object({
  execution_id: z.string(),
  started: z.int(),
  queued: z.int(),
  running: z.int(),
  sleeping: z.int(),
  awaiting: z.int(),
  succeeded: z.int(),
  /** The first that waits for input, and the first that ended without success. */
  awaiting_id: z.string().nullable(),
  failed_id: z.string().nullable(),
})
export type Children = z.output<typeof Children>

const LoadedRun = RunShape.extend({
  now: z.string(),
  project_paused: z.boolean(),
  project_pause_reason: z.string().nullable(),
  max_concurrent_runs: z.int().nullable(),
  max_run_depth: z.int().nullable(),
  /** It is about to be stopped, and begins nothing more. */
  stopping: z.boolean(),
  /** Attempts of its project that workers hold. */
  held: z.int(),
  /** The revision in the snapshot of the statement: another one than `revision` when it waited for the lock. */
  seen_revision: z.int(),
  open: z.array(z.custom<NodeExecutionRow>()),
  children: z.array(Children),
})
export type LoadedRun = z.output<typeof LoadedRun>
const loaded = sql.type(LoadedRun)

/**
 * A run under its lock with its attempts that are not applied and what has become of the runs below it; null when it is
 * gone, and for one that a module drives unless the caller holds its records (`driven`). By primary keys, orchestration_node_executions_run and orchestration_runs_parent.
 */
export async function loadRun(db: Queryable, runId: string, driven = false): Promise<LoadedRun | null> {
  const read = () =>
    db.maybeOne(loaded`
      select ${runColumns}, now() as now, p.paused_at is not null as project_paused, p.pause_reason as project_pause_reason, p.max_concurrent_runs, p.max_run_depth, ${isStopping('t')} as stopping,
        (select count(*) from orchestration_node_executions o where o.project_id = t.project_id and o.leased_until > now()) as held,
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
  // It waited for the lock: what other tables say is from before.
  return first && first.seen_revision !== first.revision ? read() : first
}

/**
 * The condition of a statement that goes on with a run of a project that is not paused, while the run is as it was and its
 * attempt with whoever took it. It holds the locks of both.
 */
export const revisionUnchanged = (
  run: Pick<RunRow, 'id' | 'revision'>,
  { id, deliveries, polls }: Pick<NodeExecutionRow, 'id' | 'deliveries' | 'polls'>,
): StatementWrite => ({
  ctes: [
    sql.fragment`unchanged as (
      select t.id from orchestration_runs t join orchestration_node_executions e on e.run_id = t.id
      where t.id = ${run.id} and t.revision = ${run.revision} and e.id = ${id} and e.status = 'running'
        and e.deliveries = ${deliveries} and e.polls = ${polls}
        and exists (select from projects p where p.id = t.project_id and p.paused_at is null)
        and not ${isStopping('t')}
      for update of t, e)`,
  ],
  guard: sql.fragment`exists (select from unchanged)`,
  // As the columns round it.
  columns: sql.fragment`now()::timestamptz(3) as now`,
})

/** Columns of a run that change after it was inserted. */
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

/** The part of a statement that writes what changes of a run whose row the caller holds; `estimated` as `dated` takes it. */
export const runUpdate = (run: RunRow, guard: Fragment, estimated: string | null): Fragment => sql.fragment`
  update orchestration_runs t set (${columnList(CHANGING)}) = (
    select ${timestampColumns(CHANGING, 'r', estimated)} from json_populate_record(null::orchestration_runs, ${JSON.stringify(
      Object.fromEntries(CHANGING.map(column => [column, run[column]])),
    )}::json) r)
  where t.id = ${run.id} and ${guard}`

/** The part of a statement that adds runs. */
export const runInsert = (runs: readonly RunRow[], guard: Fragment): Fragment => sql.fragment`
  insert into orchestration_runs
  select r.* from json_populate_recordset(null::orchestration_runs, ${JSON.stringify(runs)}::json) r where ${guard}`

const Counted = sql.type(z.strictObject({ roots: z.int(), own: z.boolean() }))

/** Trees of a project that run beside one, and whether that runs itself. By orchestration_runs_live. */
export const runningTrees = (db: Queryable, projectId: string, rootId: string) =>
  db.one(Counted`
    select count(distinct root_id) filter (where root_id <> ${rootId}) as roots, coalesce(bool_or(root_id = ${rootId}), false) as own
    from orchestration_runs where project_id = ${projectId} and status = 'running'`)

/** Serialises who takes and gives back room in a project, until the transaction ends. */
export const lockRunSlots = (db: Queryable, projectId: string) =>
  db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended(${`runs ${projectId}`}, 0))`)

export const NamedRun = z.strictObject({ id: z.string(), project_id: z.string() })
export type NamedRun = z.output<typeof NamedRun>
const named = sql.type(NamedRun)

/** Most runs of a tree that are woken together. */
const WOKEN = 100

/**
 * What is queued of the tree of a project that has waited for room the longest: trees that run have room already. By
 * orchestration_runs_live and orchestration_runs_root.
 */
export const longestQueued = (db: Queryable, projectId: string, besideRoot: string): Promise<readonly NamedRun[]> =>
  db.any(named`
    with next as (
      select q.root_id from orchestration_runs q
      where q.project_id = ${projectId} and q.status = 'queued' and q.queued_at is not null and q.root_id <> ${besideRoot}
        and not exists (
          select from orchestration_runs o
          where o.project_id = q.project_id and o.status = 'running' and o.root_id = q.root_id)
      order by q.queued_at limit 1)
    select t.id, t.project_id from next join orchestration_runs t on t.root_id = next.root_id
    where t.status = 'queued' order by t.queued_at limit ${WOKEN}`)

const failedChild = sql.type(
  z.object({ id: z.string(), status: z.enum(RUN_STATUSES), error: RecordedFailure.nullable() }),
)

/** How a run that a node started has ended. */
export const findChild = (db: Queryable, id: string) =>
  db.maybeOne(failedChild`select id, status, error from orchestration_runs where id = ${id}`)

const outputs = sql.type(z.object({ output: jsonObject.nullable() }))

/**
 * What the runs that an attempt of a node started came to, in the order of its collection; nothing where that is more
 * than so many bytes. By orchestration_runs_parent.
 */
export const childOutputs = (db: Queryable, runId: string, executionId: string, mostBytes: number) =>
  db.any(outputs`
    with below as materialized (
      select id, octet_length(output::text) as bytes from orchestration_runs
      where parent_id = ${runId} and parent_execution_id = ${executionId})
    select r.output from below b join orchestration_runs r on r.id = b.id
    where (select coalesce(sum(bytes), 0) from below) <= ${mostBytes} order by r.parent_index`)

/** Runs of a project that have waited for room the longest. By orchestration_runs_live. */
export const longestQueuedOf = (db: Queryable, projectId: string, limit: number): Promise<readonly NamedRun[]> =>
  db.any(named`
    select id, project_id from orchestration_runs
    where project_id = ${projectId} and status = 'queued' and queued_at is not null
    order by queued_at limit ${limit}`)

/** Whether any run has not ended, or an orchestration is being deleted. By orchestration_runs_live and orchestrations_deletion. */
export const hasLiveRuns: Fragment = sql.fragment`(
  exists (select from orchestration_runs where status in ${LIVE})
  or exists (select from orchestrations where managed_by = 'deletion'))`

const stateColumns = sql.type(RunShape.pick({ input: true, outcomes: true, written: true }))

/** What expressions of a run read. */
export const findState = (db: Queryable, runId: string) =>
  db.maybeOne(stateColumns`select input, outcomes, written from orchestration_runs where id = ${runId}`)

/** Live runs of a project in the order of their ids. By orchestration_runs_live. */
export const nextLiveRuns = (
  db: Queryable,
  projectId: string,
  after: string,
  limit: number,
): Promise<readonly NamedRun[]> =>
  db.any(named`
    select id, project_id from orchestration_runs
    where project_id = ${projectId} and id > ${after} and status in ${LIVE}
    order by id limit ${limit}`)

/** The pause of a project becomes that of those of some runs that no other run started, unless they have one of their own. */
export const pauseWithProject = (db: Queryable, ids: readonly string[], reason: string | null) =>
  db.query(voidStatement`
    with held as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and parent_id is null and pause_requested_at is null
        and status in ${LIVE} order by id for update)
    update orchestration_runs t set pause_requested_at = now(), pause_reason = ${reason}, paused_with_project = true,
      revision = t.revision + 1, updated_at = now()
    from held where t.id = held.id`)

/** Takes the pause of their project from runs that have it. */
export const resumeWithProject = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`
    with held as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and paused_with_project
        and status in ${LIVE} order by id for update)
    update orchestration_runs t set pause_requested_at = null, pause_reason = null, paused_with_project = false,
      revision = t.revision + 1, updated_at = now()
    from held where t.id = held.id`)

/** Deletes runs that have ended, with all below them. */
export const deleteRuns = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`delete from orchestration_runs where id = any(${sql.array([...ids], 'text')})`)

/** Whether a run that has not ended has a node that was answered by a turn. By orchestration_node_executions_generation. */
export const isTurnOfLiveRun = ({ id }: { id: Fragment }): Fragment => sql.fragment`exists (
  select from orchestration_node_executions e join orchestration_runs r on r.id = e.run_id
  where e.generation_id = ${id} and r.status in ${LIVE})`
