import { z } from 'zod'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { type WorkItemClaim, workItemTable } from '../../core/jobs/work-item.ts'
import { HOLDER } from '../../core/process/holder.ts'
import type { TransitionRow } from './history.ts'
import { type TaskRow, taskKind } from './model.ts'
import type { NewDispatch } from './task-change.ts'

/** Bytes of what is large in a task, and of what is stored of it, which is known without reading it. */
export const taskBytes = sql.fragment`(
  octet_length(t.payload::text) + coalesce(octet_length(t.metadata::text), 0) + coalesce(octet_length(t.last_result::text), 0))`
export const storedBytes = sql.fragment`(
  pg_column_size(t.payload) + coalesce(pg_column_size(t.metadata), 0) + coalesce(pg_column_size(t.last_result), 0))`

/** A new task, as a part of a statement. */
export const taskInsert = (row: TaskRow, guard: Fragment): Fragment => sql.fragment`
  insert into tasks select r.* from json_populate_record(null::tasks, ${JSON.stringify(row)}::json) r where ${guard}`

/**
 * Writes what differs between two states of a task while its row is as it was before; by the primary key. Gives its id.
 * @param guard what else has to hold
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

/** Entries of histories, as a part of a statement. */
export const historyInsert = (rows: readonly TransitionRow[], guard: Fragment): Fragment => sql.fragment`
  insert into task_transitions
  select r.* from json_populate_recordset(null::task_transitions, ${JSON.stringify(rows)}::json) r where ${guard}`

/** Puts a dispatch in the place of the one that the task had, as a part of a statement. */
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

/** Dispatches as attempts: a task has one. */
export const dispatchAttempts = workItemTable({
  table: 'task_dispatches',
  entity: 'task_id',
  owner: 'tasks',
  row: { losses: z.int() },
  // What is too often is decided with the call.
  maxLosses: 1_000_000,
})

const Dispatched = z.object({
  dispatch_id: z.string(),
  dispatch_state: z.enum(['queued', 'running', 'started', 'held']),
  attempt: z.int(),
  kind: z.enum(['agent', 'orchestration', 'tool', 'trigger']),
  result_id: z.string().nullable(),
  losses: z.int(),
  claims: z.int(),
  failures: z.int(),
  /** Whether its worker is silent, or has not begun. */
  free: z.boolean(),
  project_paused: z.boolean(),
})

const DispatchedRow = z.object({ ...taskKind.row.shape, ...Dispatched.shape })
const dispatched = sql.type(DispatchedRow)

/** A task with its dispatch. */
export type TaskWithDispatch = { task: TaskRow; dispatch: z.output<typeof Dispatched> }

const dispatchColumns = sql.fragment`
  d.id as dispatch_id, d.state as dispatch_state, d.attempt, d.kind, d.result_id, d.losses, d.claims, d.failures,
  (d.state <> 'running' or d.due_at <= now()) as free,
  (select p.paused_at is not null from projects p where p.id = t.project_id) as project_paused`

function split(row: z.output<typeof DispatchedRow> | null): TaskWithDispatch | null {
  if (!row) return null
  const names = Object.keys(Dispatched.shape)
  const entries = Object.entries(row)
  return {
    task: Object.fromEntries(entries.filter(([name]) => !names.includes(name))) as TaskRow,
    dispatch: Object.fromEntries(entries.filter(([name]) => names.includes(name))) as TaskWithDispatch['dispatch'],
  }
}

/** A task and the dispatch that it has under way, while it is that one; both under their locks with `lock`. */
export const findDispatch = async (
  db: Queryable,
  taskId: string,
  dispatchId: string | null,
  lock = false,
): Promise<TaskWithDispatch | null> =>
  split(
    await db.maybeOne(dispatched`
      select ${taskKind.columns}, ${dispatchColumns}
      from tasks t join task_dispatches d on d.task_id = t.id
      where t.id = ${taskId} ${dispatchId === null ? sql.fragment`` : sql.fragment`and d.id = ${dispatchId}`}
      ${lock ? sql.fragment`for update of t, d` : sql.fragment``}`),
  )

/**
 * Claims the call of a tool: of a dispatch that is queued, or whose worker was silent for a lease. Null for any other, and
 * while the task or its project is paused. By the primary keys.
 */
export const claimCall = async (
  db: Queryable,
  taskId: string,
  dispatchId: string,
  leaseMs: number,
): Promise<TaskWithDispatch | null> =>
  split(
    await db.maybeOne(dispatched`
      update task_dispatches d set state = 'running', claims = d.claims + 1, losses = d.losses + (d.state = 'running')::integer,
        heartbeat_at = now(), due_at = now() + ${leaseMs} * interval '1 ms', holder = ${HOLDER}
      from tasks t
      where d.task_id = ${taskId} and d.id = ${dispatchId} and t.id = d.task_id
        and (d.state = 'queued' and t.pause_requested_at is null
            and not exists (select from projects p where p.id = d.project_id and p.paused_at is not null)
          or d.state = 'running' and d.due_at <= now())
      returning ${taskKind.columns}, ${dispatchColumns}`),
  )

/** Notes what a dispatch waits for, and when somebody looks after it without being told. */
export const recordStarted = (db: Queryable, taskId: string, resultId: string, graceMs: number) =>
  db.query(voidStatement`
    update task_dispatches set state = 'started', result_id = ${resultId}, due_at = null, claims = claims + 1,
      look_at = now() + ${graceMs} * interval '1 ms'
    where task_id = ${taskId}`)

/** Holds a dispatch until a pause is over. */
export const deferTaskDispatch = (db: Queryable, taskId: string) =>
  db.query(voidStatement`
    update task_dispatches set state = 'held', due_at = null where task_id = ${taskId} and state = 'queued'`)

/** Has a dispatch that was held made. Gives its id. */
export const releaseDispatch = (db: Queryable, taskId: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    update task_dispatches set state = 'queued', due_at = now() where task_id = ${taskId} and state = 'held' returning id`)

const waiting = sql.type(z.object({ task_id: z.string(), project_id: z.string() }))

/** The task that waits for a turn, a run or a firing. By task_dispatches_result. */
export const waitingFor = (db: Queryable, resultId: string) =>
  db.maybeOne(waiting`select task_id, project_id from task_dispatches where result_id = ${resultId}`)

/** Tasks of a project whose dispatch is held, behind one. By task_dispatches_held. */
export const listDeferredTasks = (
  db: Queryable,
  projectId: string,
  after: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select task_id as id from task_dispatches
    where project_id = ${projectId} and state = 'held' and task_id > ${after} order by task_id limit ${limit}`)

/** Whether a sweep would find something. By tasks_stalls, task_dispatches_due and task_dispatches_look. */
export const hasDueTasks: Fragment = sql.fragment`(
  exists (select from tasks where stalls_at <= now())
  or exists (select from task_dispatches where due_at < now())
  or exists (select from task_dispatches where look_at < now()))`

/** Tasks that have stalled, each reported once. By tasks_stalls. */
export const claimStalled = (db: Queryable, limit: number): Promise<readonly TaskRow[]> =>
  db.any(taskKind.sql`
    with due as (
      select id from tasks where stalls_at <= now() order by stalls_at limit ${limit} for update skip locked)
    update tasks t set stalls_at = null, revision = t.revision + 1 from due where t.id = due.id and t.status = 'open'
    returning ${taskKind.columns}`)

const looked = sql.type(z.object({ task_id: z.string(), project_id: z.string(), settled: z.boolean() }))

/**
 * Takes dispatches that nobody has told of for a while, and says whether what they wait for has settled or is gone. The others
 * are looked at again when twice as much time has passed, at the latest in an hour: a task may wait for a person for months.
 * By task_dispatches_look.
 */
export const claimUnattended = (db: Queryable, graceMs: number, limit: number) =>
  db.any(looked`
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
 * Erases what turns said from the tasks that they were made for, by themselves or by firings, and gives the ids of these. The
 * firing of a task has the name of the dispatch as its key. By tasks_result_of, task_transitions_generation and
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

const depths = sql.type(z.object({ depth: z.int() }))

/**
 * Moves that machines made back-to-back of the task that some work is done for: its dispatch itself, a run or a turn that this
 * started; null for any other work. By primary keys and task_dispatches_result.
 */
export const automationDepth = (
  db: Queryable,
  work: { type: 'task' | 'orchestration_run' | 'generation'; id: string },
): Promise<number | null> =>
  db.maybeOneFirst(depths`
    select t.automation_chain_depth as depth from tasks t where t.id = ${
      work.type === 'task'
        ? work.id
        : work.type === 'generation'
          ? sql.fragment`(select d.task_id from task_dispatches d where d.result_id = ${work.id} limit 1)`
          : sql.fragment`(
              select root.task_id from orchestration_runs r join orchestration_runs root on root.id = r.root_id
              where r.id = ${work.id})`
    }`)

const counted = sql.type(z.object({ count: z.int() }))

/** Open tasks of a workflow. By tasks_open. */
export const countOpen = (db: Queryable, workflowId: string): Promise<number> =>
  db.oneFirst(
    counted`select count(*)::integer as count from tasks where workflow_id = ${workflowId} and status = 'open'`,
  )

export type CallClaim = WorkItemClaim & { losses: number }
