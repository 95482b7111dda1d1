import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { selectList } from '../../core/api/kind.ts'
import { type Fragment, identifying, type Queryable, sql, statement } from '../../core/db/sql.ts'
import type { OneStatement } from '../../core/db/write.ts'
import { WORKER_TYPES } from '../orchestrations/definition.ts'
import { EXECUTION_STATUSES, RUN_STATUSES, type RunRow, RunRow as RunShape } from './model.ts'

const anObject = z.record(z.string(), z.unknown())

/** Statuses of runs that have not ended, in the words of orchestration_runs_live. */
export const LIVE = sql.fragment`('queued', 'running', 'sleeping', 'awaiting_input')`
/** Types of nodes whose attempts workers make. */
export const BY_WORKERS = sql.fragment`(${sql.join([...WORKER_TYPES], sql.fragment`, `)})`

/** An attempt of a node, as it is stored. */
export const ExecutionRow = z.object({
  id: z.string(),
  run_id: z.string(),
  project_id: z.string(),
  node_id: z.string(),
  node_type: z.string(),
  attempt: z.int(),
  status: z.enum(EXECUTION_STATUSES),
  /** The nodes that were activated together with it: their outcomes are applied together. */
  round: z.int(),
  /** Its outcome is part of the state of the run, or never will be. */
  applied: z.boolean(),
  /** It has waited: its outcome is applied by itself. */
  parked: z.boolean(),
  input: anObject.nullable(),
  output: z.unknown(),
  label: z.string().nullable(),
  through: z.boolean(),
  error: RecordedFailure.nullable(),
  generation_id: z.string().nullable(),
  approval_id: z.string().nullable(),
  decision_id: z.string().nullable(),
  progress: anObject.nullable(),
  deliveries: z.int(),
  leased_until: z.string().nullable(),
  polls: z.int(),
  wake_at: z.string().nullable(),
  deadline_at: z.string().nullable(),
  callback_hash: z.string().nullable(),
  compute_seconds: z.number(),
  started_at: z.string().nullable(),
  completed_at: z.string().nullable(),
  created_at: z.string(),
})
export type ExecutionRow = z.output<typeof ExecutionRow>

const executionColumns = selectList(Object.keys(ExecutionRow.shape))
const runColumns = selectList(Object.keys(RunShape.shape))
const execution = sql.type(ExecutionRow)

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

const Loaded = RunShape.extend({
  now: z.string(),
  project_paused: z.boolean(),
  project_pause_reason: z.string().nullable(),
  max_concurrent_runs: z.int().nullable(),
  max_run_depth: z.int().nullable(),
  /** Attempts of its project that workers hold. */
  held: z.int(),
  /** The revision in the snapshot of the statement: another one than `revision` when it waited for the lock. */
  seen_revision: z.int(),
  open: z.array(z.custom<ExecutionRow>()),
  children: z.array(Children),
})
export type Loaded = z.output<typeof Loaded>
const loaded = sql.type(Loaded)

/**
 * A run under its lock with its attempts that are not applied and what has become of the runs below it; null when it is
 * gone, and for one that a module drives unless the caller holds its records (`driven`). By primary keys, orchestration_node_executions_run and orchestration_runs_parent.
 */
export async function loadRun(db: Queryable, runId: string, driven = false): Promise<Loaded | null> {
  const read = () =>
    db.maybeOne(loaded`
      select ${runColumns}, now() as now, p.paused_at is not null as project_paused, p.pause_reason as project_pause_reason, p.max_concurrent_runs, p.max_run_depth,
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
export const unchanged = (
  run: Pick<RunRow, 'id' | 'revision'>,
  { id, deliveries, polls }: Pick<ExecutionRow, 'id' | 'deliveries' | 'polls'>,
): OneStatement => ({
  ctes: [
    sql.fragment`unchanged as (
      select t.id from orchestration_runs t join orchestration_node_executions e on e.run_id = t.id
      where t.id = ${run.id} and t.revision = ${run.revision} and e.id = ${id} and e.status = 'running'
        and e.deliveries = ${deliveries} and e.polls = ${polls}
        and exists (select from projects p where p.id = t.project_id and p.paused_at is null)
      for update of t, e)`,
  ],
  guard: sql.fragment`exists (select from unchanged)`,
  columns: sql.fragment`1 as written`,
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

const names = (columns: readonly string[], from?: string): Fragment =>
  sql.fragment`${sql.join(
    columns.map(column => sql.identifier(from ? [from, column] : [column])),
    sql.fragment`, `,
  )}`

/** The part of a statement that writes what changes of a run whose row the caller holds. */
export const runUpdate = (run: RunRow, guard: Fragment): Fragment => sql.fragment`
  update orchestration_runs t set (${names(CHANGING)}) = (
    select ${names(CHANGING, 'r')} from json_populate_record(null::orchestration_runs, ${JSON.stringify(
      Object.fromEntries(CHANGING.map(column => [column, run[column]])),
    )}::json) r)
  where t.id = ${run.id} and ${guard}`

/** The part of a statement that adds runs. */
export const runInsert = (runs: readonly RunRow[], guard: Fragment): Fragment => sql.fragment`
  insert into orchestration_runs
  select r.* from json_populate_recordset(null::orchestration_runs, ${JSON.stringify(runs)}::json) r where ${guard}`

/** Columns of an attempt that never change. */
const KEPT = ['id', 'run_id', 'project_id', 'node_id', 'node_type', 'attempt', 'round', 'input', 'created_at']
const WRITTEN = Object.keys(ExecutionRow.shape)

/** The part of a statement that writes attempts, new ones and others. */
export const executionsWrite = (rows: readonly ExecutionRow[], guard: Fragment): Fragment => sql.fragment`
  insert into orchestration_node_executions as t (${names(WRITTEN)})
  select ${names(WRITTEN, 'e')} from json_populate_recordset(null::orchestration_node_executions, ${JSON.stringify(rows)}::json) e
  where ${guard}
  on conflict (id) do update set ${sql.join(
    WRITTEN.filter(column => !KEPT.includes(column)).map(
      column => sql.fragment`${sql.identifier([column])} = ${sql.identifier(['excluded', column])}`,
    ),
    sql.fragment`, `,
  )}`

/** All attempts of a run, oldest first. By orchestration_node_executions_run. */
export const executionsOf = (db: Queryable, runId: string): Promise<readonly ExecutionRow[]> =>
  db.any(execution`
    select ${executionColumns} from orchestration_node_executions t where t.run_id = ${runId}
    order by t.created_at, t.id`)

/** Whether a run has come to a node, or a run before that this one repeats. By the unique index of attempts. */
export const hasBegun = async (db: Queryable, runId: string, nodeId: string, seeded: boolean): Promise<boolean> =>
  seeded ||
  (await db.exists(identifying`
    select id from orchestration_node_executions
    where run_id = ${runId} and node_id = ${nodeId} and status <> 'skipped' limit 1`))

const lastState = sql.type(ExecutionRow.pick({ node_id: true, status: true }))

/** How the last attempt of each node of a run stands. By the unique index of attempts. */
export const lastStates = (db: Queryable, runId: string) =>
  db.any(lastState`
    select distinct on (node_id) node_id, status from orchestration_node_executions
    where run_id = ${runId} order by node_id, attempt desc`)

const callback = sql.type(
  ExecutionRow.pick({ run_id: true, node_id: true, project_id: true }).extend({ callback_hash: z.string() }),
)

/** The wait that a callback ends; null when nobody waits for it. By orchestration_node_executions_callback. */
export const callbackOf = (db: Queryable, hash: string) =>
  db.maybeOne(callback`
    select run_id, node_id, project_id, callback_hash from orchestration_node_executions where callback_hash = ${hash}`)

/** The waits of runs that a callback ends. By orchestration_node_executions_run. */
export const callbacksOf = (db: Queryable, runIds: readonly string[]) =>
  db.any(callback`
    select run_id, node_id, project_id, callback_hash from orchestration_node_executions
    where run_id = any(${sql.array([...runIds], 'text')}) and callback_hash is not null`)

/** Attempts of a run that began at a time or later, without input and output. By orchestration_node_executions_run. */
export const executionsSince = (db: Queryable, runId: string, since: string | null): Promise<readonly ExecutionRow[]> =>
  db.any(execution`
    select ${selectList(Object.keys(ExecutionRow.shape), {
      input: sql.fragment`null::json`,
      output: sql.fragment`null::json`,
      progress: sql.fragment`null::json`,
    })} from orchestration_node_executions t
    where t.run_id = ${runId} and t.created_at >= coalesce(${since}::timestamptz, '-infinity') order by t.created_at, t.id`)

const Taken = ExecutionRow.extend({
  orchestration_id: z.string(),
  orchestration_version: z.int(),
  context: z.string().nullable(),
  driver: z.string().nullable(),
  authority: RunShape.shape.authority,
  trigger_id: z.string().nullable(),
  root_id: z.string(),
})
/** An attempt that a worker has, with what it needs of the run. */
export type Taken = z.output<typeof Taken>
const taken = sql.type(Taken)

/** What an attempt needs of its run. */
export const takenOf = (row: ExecutionRow, run: RunRow): Taken => ({
  ...row,
  orchestration_id: run.orchestration_id,
  orchestration_version: run.orchestration_version,
  context: run.context,
  driver: run.driver,
  authority: run.authority,
  trigger_id: run.trigger_id,
  root_id: run.root_id,
})

/** What a worker takes attempts with. `most`: how many of one project are held at a time; 0 for any number. */
export type Taking = { leaseMs: number; most: number; deliveries: number }

/**
 * Takes an attempt that nobody holds, of a run that has not ended: counts the delivery and begins a lease. Null for any
 * other, and where `most` of the project are held already.
 */
export const take = (
  db: Queryable,
  executionId: string,
  { leaseMs, most, deliveries }: Taking,
): Promise<Taken | null> =>
  db.maybeOne(taken`
    update orchestration_node_executions t
    set deliveries = t.deliveries + 1, leased_until = now() + ${leaseMs} * interval '1 ms',
      started_at = coalesce(t.started_at, now())
    from orchestration_runs r
    where t.id = ${executionId} and r.id = t.run_id and t.status = 'running' and not t.applied
      and r.status in ${LIVE}
      and (t.leased_until is null or t.leased_until < now()) and t.deliveries < ${deliveries}
      and (${most} = 0 or ${most} > (
        select count(*) from orchestration_node_executions o
        where o.project_id = t.project_id and o.leased_until > now()))
    returning ${executionColumns}, r.orchestration_id, r.orchestration_version, r.context, r.driver, r.authority, r.trigger_id, r.root_id`)

/** The same for one of those that come last into a project: one after the other, so that no two take the same place. */
export const takeStrictly = async (tx: Queryable, execution: { id: string; project_id: string }, taking: Taking) => {
  await tx.query(statement`
    select from pg_advisory_xact_lock(hashtextextended(${`attempts ${execution.project_id}`}, 0))`)
  return take(tx, execution.id, taking)
}

const Waiting = z.object({
  deliveries: z.int(),
  held: z.boolean(),
  age_ms: z.number(),
})
const waitingOf = sql.type(Waiting)

/** How an attempt stands that a worker should do; null when nobody should. */
export const findWaiting = (db: Queryable, executionId: string): Promise<z.output<typeof Waiting> | null> =>
  db.maybeOne(waitingOf`
    select t.deliveries, coalesce(t.leased_until > now(), false) as held,
      extract(epoch from now() - t.created_at)::float8 * 1000 as age_ms
    from orchestration_node_executions t join orchestration_runs r on r.id = t.run_id
    where t.id = ${executionId} and t.status = 'running' and not t.applied
      and r.status in ${LIVE}`)

/** Renews the lease of an attempt; false when it is another's by now, or the run has stopped. */
export const renew = async (
  db: Queryable,
  { id, deliveries, polls }: Pick<ExecutionRow, 'id' | 'deliveries' | 'polls'>,
  leaseMs: number,
): Promise<boolean> =>
  (
    await db.query(statement`
      update orchestration_node_executions set leased_until = now() + ${leaseMs} * interval '1 ms'
      where id = ${id} and status = 'running' and deliveries = ${deliveries} and polls = ${polls}`)
  ).rowCount === 1

/** Gives an attempt back uncounted, for another worker to take at once. */
export const giveBack = (db: Queryable, { id, deliveries, polls }: Pick<ExecutionRow, 'id' | 'deliveries' | 'polls'>) =>
  db.query(statement`
    update orchestration_node_executions set leased_until = null, deliveries = deliveries - 1
    where id = ${id} and status = 'running' and deliveries = ${deliveries} and polls = ${polls}`)

const Counted = sql.type(z.strictObject({ roots: z.int(), own: z.boolean() }))

/** Trees of a project that run beside one, and whether that runs itself. By orchestration_runs_live. */
export const runningTrees = (db: Queryable, projectId: string, rootId: string) =>
  db.one(Counted`
    select count(distinct root_id) filter (where root_id <> ${rootId}) as roots, coalesce(bool_or(root_id = ${rootId}), false) as own
    from orchestration_runs where project_id = ${projectId} and status = 'running'`)

/** Serialises who takes and gives back room in a project, until the transaction ends. */
export const lockRoom = (db: Queryable, projectId: string) =>
  db.query(statement`select from pg_advisory_xact_lock(hashtextextended(${`runs ${projectId}`}, 0))`)

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

const outputs = sql.type(z.object({ output: anObject.nullable() }))

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

const stopped = sql.type(RunShape)

/**
 * The ctes of what has not ended of trees of runs, under its locks: `held`, where parents are locked before what is below
 * them. A run that one of them starts meanwhile is missed. By orchestration_runs_parent.
 */
const heldTrees = (roots: Fragment): Fragment => sql.fragment`
    recursive tree as (
      select r.id from orchestration_runs r where ${roots}
      union
      select r.id from tree join orchestration_runs r on r.parent_id = tree.id),
    held as (
      select r.id from tree join orchestration_runs r on r.id = tree.id
      where r.status in ${LIVE} order by r.run_depth, r.id for update of r)`

/** Ends runs that have not ended, with all that are below them. Ask again until there is none. */
const cancelTrees = (db: Queryable, roots: Fragment): Promise<readonly RunRow[]> =>
  db.any(stopped`
    with ${heldTrees(roots)}
    update orchestration_runs t set status = 'cancelled', revision = t.revision + 1, active_nodes = '{}', required_actions = '[]',
      context = null, wake_at = null, due_at = null, queued_at = null, completed_at = now(), updated_at = now()
    from held where t.id = held.id returning ${runColumns}`)

/** Ends all runs below some, or below one attempt of a node of them, that have not ended. */
export const cancelBelow = (db: Queryable, runIds: readonly string[], executionId: string | null = null) =>
  cancelTrees(
    db,
    sql.fragment`r.parent_id = any(${sql.array([...runIds], 'text')})
      and (${executionId}::text is null or r.parent_execution_id = ${executionId})`,
  )

/** Ends all runs of an orchestration that have not ended, with what is below them. By orchestration_runs_orchestration. */
export const cancelRunsOf = (db: Queryable, orchestrationId: string) =>
  cancelTrees(
    db,
    sql.fragment`r.orchestration_id = ${orchestrationId}
      and r.status in ${LIVE}`,
  )

/** Runs of a project that have waited for room the longest. By orchestration_runs_live. */
export const longestQueuedOf = (db: Queryable, projectId: string, limit: number): Promise<readonly NamedRun[]> =>
  db.any(named`
    select id, project_id from orchestration_runs
    where project_id = ${projectId} and status = 'queued' and queued_at is not null
    order by queued_at limit ${limit}`)

const left = sql.type(z.object({ generation_id: z.string().nullable(), approval_id: z.string().nullable() }))

/** Ends the attempts of runs that are under way; what they waited for. */
export const cancelExecutions = (db: Queryable, runIds: readonly string[]) =>
  db.any(left`
    update orchestration_node_executions set applied = true, leased_until = null, wake_at = null, deadline_at = null,
      callback_hash = null, completed_at = coalesce(completed_at, now()),
      status = case when status in ('completed', 'failed') then status else 'cancelled' end
    where run_id = any(${sql.array([...runIds], 'text')}) and not applied returning generation_id, approval_id`)

/** Whether any run has not ended. By orchestration_runs_live. */
export const hasLiveRuns = (db: Queryable): Promise<boolean> =>
  db.exists(identifying`select id from orchestration_runs where status in ${LIVE} limit 1`)

const stateColumns = sql.type(RunShape.pick({ input: true, outcomes: true, written: true }))

/** What expressions of a run read. */
export const findState = (db: Queryable, runId: string) =>
  db.maybeOne(stateColumns`select input, outcomes, written from orchestration_runs where id = ${runId}`)

/** Pauses what is below a run and has not ended, unless it is paused already. */
export const pauseBelow = (db: Queryable, runId: string, reason: string | null): Promise<readonly NamedRun[]> =>
  db.any(named`
    with ${heldTrees(sql.fragment`r.parent_id = ${runId}`)}
    update orchestration_runs t set revision = t.revision + 1, updated_at = now(),
      pause_reason = case when t.pause_requested_at is null then ${reason} else t.pause_reason end,
      pause_requested_at = coalesce(t.pause_requested_at, now())
    from held where t.id = held.id returning t.id, t.project_id`)

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
  db.query(statement`
    with held as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and parent_id is null and pause_requested_at is null
        and status in ${LIVE} order by id for update)
    update orchestration_runs t set pause_requested_at = now(), pause_reason = ${reason}, paused_with_project = true,
      revision = t.revision + 1, updated_at = now()
    from held where t.id = held.id`)

/** Takes the pause of their project from runs that have it. */
export const resumeWithProject = (db: Queryable, ids: readonly string[]) =>
  db.query(statement`
    with held as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and paused_with_project
        and status in ${LIVE} order by id for update)
    update orchestration_runs t set pause_requested_at = null, pause_reason = null, paused_with_project = false,
      revision = t.revision + 1, updated_at = now()
    from held where t.id = held.id`)

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
export const listedColumns = (values: boolean): Fragment => {
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

/** Attempts of each of some runs, oldest first. By orchestration_node_executions_run. */
export async function listedExecutions(
  db: Queryable,
  runIds: readonly string[],
): Promise<ReadonlyMap<string, ExecutionRow[]>> {
  if (runIds.length === 0) return new Map()
  const rows = await db.any(execution`
    select ${executionColumns} from orchestration_node_executions t
    where t.run_id = any(${sql.array([...runIds], 'text')}) order by t.created_at, t.id`)
  return Map.groupBy(rows, ({ run_id }) => run_id)
}

/** Deletes runs that have ended, with all below them. */
export const deleteRuns = (db: Queryable, ids: readonly string[]) =>
  db.query(statement`delete from orchestration_runs where id = any(${sql.array([...ids], 'text')})`)
