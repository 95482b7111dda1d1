import { z } from 'zod'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { workItemTable } from '../../core/jobs/work-item.ts'
import { HOLDER } from '../../core/process/holder.ts'
import type { TransitionRow } from './history.ts'
import { type TaskRow, taskKind } from './model.ts'
import type { NewDispatch } from './task-change.ts'

/** Text size of the large columns of a task, in bytes. */
export const taskBytes = sql.fragment`(
  octet_length(t.payload::text) + coalesce(octet_length(t.metadata::text), 0) + coalesce(octet_length(t.last_result::text), 0))`
/** Stored (compressed) size of these columns, available without decompressing them. */
export const storedBytes = sql.fragment`(
  pg_column_size(t.payload) + coalesce(pg_column_size(t.metadata), 0) + coalesce(pg_column_size(t.last_result), 0))`

/** Returns the CTE that inserts a task. */
export const taskInsert = (row: TaskRow, guard: Fragment): Fragment => sql.fragment`
  insert into tasks select r.* from json_populate_record(null::tasks, ${JSON.stringify(row)}::json) r where ${guard}`

/**
 * Returns the CTE that writes the changed columns of a task if its row is still at revision `before.revision`. It
 * returns the task id. By the primary key.
 * @param guard additional condition
 */
export function taskUpdate(before: TaskRow, after: TaskRow, guard: Fragment): Fragment {
  const columns = (Object.keys(after) as (keyof TaskRow)[]).filter(name => before[name] !== after[name])
  const values = Object.fromEntries(columns.map(name => [name, after[name]]))
  const sets = columns.map(name => sql.fragment`${sql.identifier([name])} = ${sql.identifier(['r', name])}`)
  return sql.fragment`
    update tasks t set ${sql.join(sets, sql.fragment`, `)}
    from json_populate_record(null::tasks, ${JSON.stringify(values)}::json) r
    where t.id = ${before.id} and t.revision = ${before.revision} and ${guard} returning t.id`
}

/** Returns the CTE that inserts history entries. */
export const historyInsert = (rows: readonly TransitionRow[], guard: Fragment): Fragment => sql.fragment`
  insert into task_transitions
  select r.* from json_populate_recordset(null::task_transitions, ${JSON.stringify(rows)}::json) r where ${guard}`

/** Returns the CTE that inserts a dispatch or replaces the previous dispatch of the task. */
export const dispatchWrite = (dispatch: NewDispatch, guard: Fragment): Fragment => sql.fragment`
  insert into task_dispatches as d (task_id, id, project_id, entry_seq, attempt, kind, state, due_at)
  select ${dispatch.task_id}, ${dispatch.id}, ${dispatch.project_id}, ${dispatch.entry_seq}::integer, ${dispatch.attempt}::integer,
    ${dispatch.kind}, ${dispatch.state}, ${
      dispatch.state === 'held' ? sql.fragment`null` : sql.fragment`now() + ${dispatch.delay_ms} * interval '1 ms'`
    }
  where ${guard}
  on conflict (task_id) do update set id = excluded.id, entry_seq = excluded.entry_seq, attempt = excluded.attempt,
    kind = excluded.kind, state = excluded.state, due_at = excluded.due_at, result_id = null, look_at = null, claims = 0,
    losses = 0, failures = 0, heartbeat_at = null`

export const dispatchDelete = (taskId: string, guard: Fragment): Fragment => sql.fragment`
  delete from task_dispatches where task_id = ${taskId} and ${guard}`

/** Dispatches as work items, at most one per task. */
export const taskDispatchWork = workItemTable({
  table: 'task_dispatches',
  entity: 'task_id',
  owner: 'tasks',
  row: { losses: z.int() },
  // executeDispatch limits the losses of a tool call.
  maxLosses: 1_000_000,
})

const DispatchColumns = z.object({
  dispatch_id: z.string(),
  dispatch_state: z.enum(['queued', 'running', 'started', 'held']),
  attempt: z.int(),
  kind: z.enum(['agent', 'orchestration', 'tool', 'trigger']),
  result_id: z.string().nullable(),
  losses: z.int(),
  claims: z.int(),
  failures: z.int(),
  /** Whether no worker holds a valid lease. */
  free: z.boolean(),
  project_paused: z.boolean(),
})

const TaskWithDispatchRow = z.object({ ...taskKind.row.shape, ...DispatchColumns.shape })
const taskWithDispatchRow = sql.type(TaskWithDispatchRow)

export type TaskWithDispatch = { task: TaskRow; dispatch: z.output<typeof DispatchColumns> }

const dispatchColumns = sql.fragment`
  d.id as dispatch_id, d.state as dispatch_state, d.attempt, d.kind, d.result_id, d.losses, d.claims, d.failures,
  (d.state <> 'running' or d.due_at <= now()) as free,
  (select p.paused_at is not null from projects p where p.id = t.project_id) as project_paused`

function splitRow(row: z.output<typeof TaskWithDispatchRow> | null): TaskWithDispatch | null {
  if (!row) return null
  const names = Object.keys(DispatchColumns.shape)
  const entries = Object.entries(row)
  return {
    task: Object.fromEntries(entries.filter(([name]) => !names.includes(name))) as TaskRow,
    dispatch: Object.fromEntries(entries.filter(([name]) => names.includes(name))) as TaskWithDispatch['dispatch'],
  }
}

/** Returns a task with its dispatch, or null if the dispatch is not `dispatchId`. `lock` locks both rows. */
export const findDispatch = async (
  db: Queryable,
  taskId: string,
  dispatchId: string | null,
  lock = false,
): Promise<TaskWithDispatch | null> =>
  splitRow(
    await db.maybeOne(taskWithDispatchRow`
      select ${taskKind.columns}, ${dispatchColumns}
      from tasks t join task_dispatches d on d.task_id = t.id
      where t.id = ${taskId} ${dispatchId === null ? sql.fragment`` : sql.fragment`and d.id = ${dispatchId}`}
      ${lock ? sql.fragment`for update of t, d` : sql.fragment``}`),
  )

/**
 * Claims a tool call that is queued or whose lease has expired. Returns null otherwise, and for a queued call while the
 * task or its project is paused. By the primary keys.
 */
export const claimCall = async (
  db: Queryable,
  taskId: string,
  dispatchId: string,
  leaseMs: number,
): Promise<TaskWithDispatch | null> =>
  splitRow(
    await db.maybeOne(taskWithDispatchRow`
      update task_dispatches d set state = 'running', claims = d.claims + 1, losses = d.losses + (d.state = 'running')::integer,
        heartbeat_at = now(), due_at = now() + ${leaseMs} * interval '1 ms', holder = ${HOLDER}
      from tasks t
      where d.task_id = ${taskId} and d.id = ${dispatchId} and t.id = d.task_id
        and (d.state = 'queued' and t.pause_requested_at is null
            and not exists (select from projects p where p.id = d.project_id and p.paused_at is not null)
          or d.state = 'running' and d.due_at <= now())
      returning ${taskKind.columns}, ${dispatchColumns}`),
  )

/** Stores the id of the started work and the time of the first check without a notification. */
export const recordStarted = (db: Queryable, taskId: string, resultId: string, graceMs: number) =>
  db.query(voidStatement`
    update task_dispatches set state = 'started', result_id = ${resultId}, due_at = null, claims = claims + 1,
      look_at = now() + ${graceMs} * interval '1 ms'
    where task_id = ${taskId}`)

/** Defers a queued dispatch until the end of a pause. */
export const deferTaskDispatch = (db: Queryable, taskId: string) =>
  db.query(voidStatement`
    update task_dispatches set state = 'held', due_at = null where task_id = ${taskId} and state = 'queued'`)

/** Queues a deferred dispatch. Returns its id. */
export const releaseDispatch = (db: Queryable, taskId: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    update task_dispatches set state = 'queued', due_at = now() where task_id = ${taskId} and state = 'held' returning id`)

const waitingTaskRow = sql.type(z.object({ task_id: z.string(), project_id: z.string() }))

/** Returns the task that waits for a turn, run or firing. By task_dispatches_result. */
export const findWaitingTask = (db: Queryable, resultId: string) =>
  db.maybeOne(waitingTaskRow`select task_id, project_id from task_dispatches where result_id = ${resultId}`)

/** Lists tasks with a deferred dispatch, after task id `after`. By task_dispatches_held. */
export const listDeferredTasks = (
  db: Queryable,
  projectId: string,
  after: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select task_id as id from task_dispatches
    where project_id = ${projectId} and state = 'held' and task_id > ${after} order by task_id limit ${limit}`)

/** Condition: a sweep has due rows. By tasks_stalls, task_dispatches_due and task_dispatches_look. */
export const hasDueTasks: Fragment = sql.fragment`(
  exists (select from tasks where stalls_at <= now())
  or exists (select from task_dispatches where due_at < now())
  or exists (select from task_dispatches where look_at < now()))`

/** Claims stalled tasks and clears their stall time, so that each is reported once. By tasks_stalls. */
export const claimStalled = (db: Queryable, limit: number): Promise<readonly TaskRow[]> =>
  db.any(taskKind.sql`
    with due as (
      select id from tasks where stalls_at <= now() order by stalls_at limit ${limit} for update skip locked)
    update tasks t set stalls_at = null, revision = t.revision + 1 from due where t.id = due.id and t.status = 'open'
    returning ${taskKind.columns}`)

const unattendedRow = sql.type(z.object({ task_id: z.string(), project_id: z.string(), settled: z.boolean() }))

/**
 * Claims started dispatches that are due for a check and returns whether their work has settled or was deleted. The
 * check interval of active work doubles up to one hour, because a task may wait for a person for months. By
 * task_dispatches_look.
 */
export const claimUnattended = (db: Queryable, graceMs: number, limit: number) =>
  db.any(unattendedRow`
    with due as materialized (
      select d.task_id, not case d.kind
        when 'agent' then exists (
          select from generations g where g.id = d.result_id and g.status not in ('completed', 'failed'))
        when 'orchestration' then exists (
          select from orchestration_runs r
          where r.id = d.result_id and r.status not in ('succeeded', 'failed', 'cancelled', 'expired'))
        else exists (
          select from trigger_firings f where f.id = d.result_id and f.state not in ('succeeded', 'failed')) end as settled
      from task_dispatches d where d.look_at < now() order by d.look_at limit ${limit} for update of d skip locked)
    update task_dispatches d set look_at = now() + case
      when due.settled then grace else greatest(grace, least(now() - t.updated_at, interval '1 hour')) end
    from due join tasks t on t.id = due.task_id, make_interval(secs => ${graceMs / 1000}) as grace
    where d.task_id = due.task_id
    returning d.task_id, d.project_id, due.settled`)

/**
 * Erases the output of turns from the tasks that started them, directly or through a firing, and returns the task ids.
 * The idempotency key of such a firing is the dispatch id. By tasks_result_of, task_transitions_generation and
 * trigger_firings_result.
 */
export const eraseTaskTurns = (db: Queryable, generationIds: readonly string[]): Promise<readonly string[]> => {
  const turns = sql.array([...generationIds], 'text')
  return db.anyFirst(idStatement`
    with moved as (select task_id from task_transitions where generation_id = any(${turns})),
    fired as materialized (
      select f.id, t.id as task_id from trigger_firings f
      join tasks t on t.id = split_part(f.idempotency_key, ':', 1) and t.project_id = f.project_id
      where f.result_id = any(${turns})),
    erased as (
      update tasks set last_result = null, result_of = null, revision = revision + 1, updated_at = now()
      where result_of = any(${turns} || array(select id from fired)) returning id)
    select id from erased union select task_id as id from moved union select task_id as id from fired`)
}

const depthRow = sql.type(z.object({ depth: z.int() }))

/**
 * Returns the automation chain depth of the task that the work (a dispatch, or a run or turn that it started) belongs
 * to, or null. By primary keys and task_dispatches_result.
 */
export const readAutomationDepth = (
  db: Queryable,
  work: { type: 'task' | 'orchestration_run' | 'generation'; id: string },
): Promise<number | null> =>
  db.maybeOneFirst(depthRow`
    select t.automation_chain_depth as depth from tasks t where t.id = ${
      work.type === 'task'
        ? work.id
        : work.type === 'generation'
          ? sql.fragment`(select d.task_id from task_dispatches d where d.result_id = ${work.id} limit 1)`
          : sql.fragment`(
              select root.task_id from orchestration_runs r join orchestration_runs root on root.id = r.root_id
              where r.id = ${work.id})`
    }`)

const countRow = sql.type(z.object({ count: z.int() }))

/** Counts the open tasks of a workflow. By tasks_open. */
export const countOpen = (db: Queryable, workflowId: string): Promise<number> =>
  db.oneFirst(
    countRow`select count(*)::integer as count from tasks where workflow_id = ${workflowId} and status = 'open'`,
  )
