import { z } from 'zod'
import { raise } from '#core/base/errors.ts'
import { traceContext } from '#core/base/telemetry.ts'
import { countStatement, type Fragment, idStatement, type Queryable, sql } from '#core/db/sql.ts'
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

/** Returns the CTE that writes the changed columns of a locked task. By the primary key. */
export function taskUpdate(before: TaskRow, after: TaskRow, guard: Fragment): Fragment {
  const columns = (Object.keys(after) as (keyof TaskRow)[]).filter(name => before[name] !== after[name])
  const values = Object.fromEntries(columns.map(name => [name, after[name]]))
  const sets = columns.map(name => sql.fragment`${sql.identifier([name])} = ${sql.identifier(['r', name])}`)
  return sql.fragment`
    update tasks t set ${sql.join(sets, sql.fragment`, `)}
    from json_populate_record(null::tasks, ${JSON.stringify(values)}::json) r
    where t.id = ${before.id} and ${guard}`
}

/** Returns the CTE that inserts history entries. */
export const historyInsert = (rows: readonly TransitionRow[], guard: Fragment): Fragment => sql.fragment`
  insert into task_transitions
  select r.* from json_populate_recordset(null::task_transitions, ${JSON.stringify(rows)}::json) r where ${guard}`

/** Returns the CTE that inserts a dispatch or replaces the previous dispatch of the task. */
export const dispatchWrite = (dispatch: NewDispatch, guard: Fragment): Fragment => sql.fragment`
  insert into task_dispatches as d (task_id, id, project_id, entry_seq, attempt, kind, state, trace_context, due_at)
  select ${dispatch.task_id}, ${dispatch.id}, ${dispatch.project_id}, ${dispatch.entry_seq}::integer, ${dispatch.attempt}::integer,
    ${dispatch.kind}, ${dispatch.state}, ${traceContext()}, ${
      dispatch.state === 'held' ? sql.fragment`null` : sql.fragment`now() + ${dispatch.delay_ms} * interval '1 ms'`
    }
  where ${guard}
  on conflict (task_id) do update set id = excluded.id, entry_seq = excluded.entry_seq, attempt = excluded.attempt,
    kind = excluded.kind, state = excluded.state, due_at = excluded.due_at, result_id = null, claims = 0, losses = 0, failures = 0,
    trace_context = excluded.trace_context`

export const dispatchDelete = (taskId: string, guard: Fragment): Fragment => sql.fragment`
  delete from task_dispatches where task_id = ${taskId} and ${guard}`

/** Columns of a dispatch that a claim returns. */
export const dispatchColumns = {
  kind: z.enum(['agent', 'orchestration', 'tool', 'trigger']),
  attempt: z.int(),
  result_id: z.string().nullable(),
  trace_context: z.string().nullable(),
}
export type DispatchColumns = z.output<z.ZodObject<typeof dispatchColumns>>

const DispatchedTask = z.object({ ...taskKind.row.shape, project_paused: z.boolean() })
export type DispatchedTask = z.output<typeof DispatchedTask>

/** A task as the entity of its dispatch; `project_paused` is not locked. */
export const dispatchedTask = {
  table: 'tasks',
  columns: sql.fragment`
    ${taskKind.columns}, (select p.paused_at is not null from projects p where p.id = t.project_id) as project_paused`,
  row: DispatchedTask,
}

const dispatchedRow = sql.type(DispatchedTask)

const entryRow = sql.type(z.object({ transition: z.string().nullable(), principal_kind: z.string() }))

/** Returns the transition by which a task entered its state, if it was approved; null otherwise. By the unique index. */
export async function findApprovedEntry(db: Queryable, { id, state }: TaskRow): Promise<string | null> {
  const entry = await db.maybeOne(entryRow`
    select transition, principal_kind from task_transitions
    where task_id = ${id} and to_state = ${state} and (transition is not null or from_state is null)
    order by seq desc limit 1`)
  return entry?.principal_kind === 'approval' ? entry.transition : null
}

/** Locks a task for a change that may start a dispatch. @throws TASK_NOT_FOUND */
export const lockTask = async (db: Queryable, id: string): Promise<DispatchedTask> =>
  (await db.maybeOne(
    dispatchedRow`select ${dispatchedTask.columns} from tasks t where t.id = ${id} for update of t`,
  )) ?? raise('TASK_NOT_FOUND', { meta: { id } })

const releasedRow = sql.type(z.object({ id: z.string(), attempt: z.int() }))

/** Queues a deferred dispatch. Null if the task has none. */
export const releaseDispatch = (db: Queryable, taskId: string) =>
  db.maybeOne(releasedRow`
    update task_dispatches set state = 'queued', due_at = now() where task_id = ${taskId} and state = 'held'
    returning id, attempt`)

const dispatchRef = sql.type(z.object({ entity: z.string(), id: z.string(), project_id: z.string() }))

/** Queues the dispatch that waits for a turn, run or firing. Null without one. By task_dispatches_result. */
export const requeueStarted = (db: Queryable, resultId: string) =>
  db.maybeOne(dispatchRef`
    update task_dispatches set state = 'queued', due_at = now() where result_id = ${resultId} and state = 'started'
    returning task_id as entity, id, project_id`)

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

/** Condition: a sweep has due rows. By tasks_stalls and task_dispatches_due. */
export const hasDueTasks: Fragment = sql.fragment`(
  exists (select from tasks where stalls_at <= now()) or exists (select from task_dispatches where due_at < now()))`

/** Claims stalled tasks and clears their stall time, so that each is reported once. By tasks_stalls. */
export const claimStalled = (db: Queryable, limit: number): Promise<readonly TaskRow[]> =>
  db.any(taskKind.sql`
    with due as (
      select id from tasks where stalls_at <= now() order by stalls_at limit ${limit} for update skip locked)
    update tasks t set stalls_at = null, revision = t.revision + 1 from due where t.id = due.id and t.status = 'open'
    returning ${taskKind.columns}`)

const checkedRow = sql.type(
  z.object({ entity: z.string(), id: z.string(), project_id: z.string(), settled: z.boolean() }),
)

/**
 * Checks started dispatches that are due for it: queues those whose work has settled or was deleted, and postpones the
 * others. The check interval of active work doubles up to one hour, because a task may wait for a person for months. By
 * task_dispatches_due.
 */
export const checkStarted = (db: Queryable, graceMs: number, limit: number) =>
  db.any(checkedRow`
    with due as materialized (
      select d.task_id, not case d.kind
        when 'agent' then exists (
          select from generations g where g.id = d.result_id and g.status not in ('completed', 'failed'))
        when 'orchestration' then exists (
          select from orchestration_runs r
          where r.id = d.result_id and r.status not in ('succeeded', 'failed', 'cancelled', 'expired'))
        else exists (
          select from trigger_firings f where f.id = d.result_id and f.state not in ('succeeded', 'failed')) end as settled
      from task_dispatches d where d.due_at < now() and d.state = 'started'
      order by d.due_at limit ${limit} for update of d skip locked)
    update task_dispatches d set state = case when due.settled then 'queued' else 'started' end, due_at = now() + case
      when not due.settled then greatest(grace, least(now() - t.updated_at, interval '1 hour')) else interval '0' end
    from due join tasks t on t.id = due.task_id, make_interval(secs => ${graceMs / 1000}) as grace
    where d.task_id = due.task_id
    returning d.task_id as entity, d.id, d.project_id, due.settled`)

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

/** Counts the open tasks of a workflow. By tasks_open. */
export const countOpen = (db: Queryable, workflowId: string): Promise<number> =>
  db.oneFirst(
    countStatement`select count(*)::integer as count from tasks where workflow_id = ${workflowId} and status = 'open'`,
  )
