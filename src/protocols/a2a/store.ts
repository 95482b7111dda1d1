import { createHash } from 'node:crypto'
import { z } from 'zod'
import { RecordedFailure } from '#core/base/errors.ts'
import { allOf, countStatement, type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { CANCEL_REASONS, CANCELLED } from '#execution/generations/request/cancel-turn.ts'
import { isTerminal, TASK_STATES } from './wire.ts'

/** Codes of turns and runs that are refused before they start: quotas and a paused project. */
export const REFUSALS = ['QUOTA_EXCEEDED', 'QUOTA_UNENFORCEABLE', 'MODEL_NOT_PRICED', 'PROJECT_PAUSED']

const Action = z.looseObject({
  type: z.string(),
  node_id: z.string().nullable(),
  prompt: z.string().nullable(),
  options: z.array(z.string()).nullable(),
  expires_at: z.string().nullable(),
})

const TaskRow = z.object({
  id: z.string(),
  project_id: z.string(),
  target_id: z.string(),
  context_id: z.string(),
  session_id: z.string().nullable(),
  run_id: z.string().nullable(),
  state: z.enum(TASK_STATES),
  notified_state: z.string().nullable(),
  updated_at: z.string(),
  failure: RecordedFailure.nullable(),
  /** The last turn of a task of an agent, and its status. */
  turn_id: z.string().nullable(),
  turn_status: z.string().nullable(),
  /** Calls of tools that a paused turn waits for. */
  tool_calls: z.array(z.looseObject({ id: z.string() })).nullable(),
  /** Pending approvals of a turn. */
  approvals: z.array(z.object({ id: z.string(), expires_at: z.string() })).nullable(),
  /** What a run waits for. */
  actions: z.array(Action).nullable(),
  operated: z.boolean(),
  /** Whether the answer is not in the record of the turn. */
  unstored: z.boolean(),
  /** The answer, if it is read: of a turn its text and object, of a run its output. */
  content: z.string().nullable(),
  object: z.unknown(),
})
/** A task with the state of its turn or run. */
export type TaskRow = z.output<typeof TaskRow>
const taskRow = sql.type(TaskRow)

const turnState = sql.fragment`case
  when g.status = 'pending' then case when s.control = 'operator' then 'TASK_STATE_INPUT_REQUIRED' else 'TASK_STATE_SUBMITTED' end
  when g.status = 'in_progress' or (g.status = 'completed' and p.is_followed) then 'TASK_STATE_WORKING'
  when g.status = 'requires_action' or p.pending is not null then 'TASK_STATE_INPUT_REQUIRED'
  when g.status = 'completed' then 'TASK_STATE_COMPLETED'
  when g.stop_reason = 'cancelled' or g.error ->> 'code' = ${CANCELLED.code} and (g.error ->> 'message' = ${CANCELLED.message}
    or g.error #>> '{meta,reason}' = any(${sql.array(CANCEL_REASONS, 'text')})) then 'TASK_STATE_CANCELED'
  when g.error ->> 'code' = any(${sql.array(REFUSALS, 'text')}) and g.step_count = 0 then 'TASK_STATE_REJECTED'
  else 'TASK_STATE_FAILED' end`

const runState = sql.fragment`case r.status
  when 'queued' then 'TASK_STATE_SUBMITTED'
  when 'running' then 'TASK_STATE_WORKING'
  when 'sleeping' then 'TASK_STATE_WORKING'
  when 'awaiting_input' then 'TASK_STATE_INPUT_REQUIRED'
  when 'succeeded' then 'TASK_STATE_COMPLETED'
  when 'cancelled' then 'TASK_STATE_CANCELED'
  else 'TASK_STATE_FAILED' end`

/**
 * Returns a query of tasks with the states of their turns or runs. A turn is continued by turns that follow the decision
 * of an approval; the task has the state of the last one. By the primary keys and approvals_generation.
 * @param chosen select of the rows of a2a_tasks, in their order
 */
const tasksQuery = (chosen: Fragment, withAnswers: boolean): Fragment => sql.fragment`
  with recursive chosen as (${chosen}), turns as (
    select c.id as task_id, c.generation_id as id from chosen c where c.generation_id is not null
    union
    select t.task_id, a.continuation_id from turns t join approvals a on a.generation_id = t.id
    where a.continuation_id is not null
  ), latest as (
    select distinct on (t.task_id) t.task_id, g.* from turns t join generations g on g.id = t.id
    order by t.task_id, g.status in ('pending', 'in_progress') desc, g.created_at desc, g.id desc
  ), decisions as (
    select t.task_id, bool_or(f.approval_id is not null) as is_followed,
      json_agg(json_build_object('id', a.id, 'expires_at', a.expires_at) order by a.id)
        filter (where a.status = 'pending') as pending
    from turns t join approvals a on a.generation_id = t.id left join approval_attempts f on f.approval_id = a.id
    group by t.task_id
  )
  select c.id, c.project_id, c.target_id, c.context_id, c.session_id, c.run_id, c.notified_state,
    case when c.refusal is not null then 'TASK_STATE_REJECTED' when r.id is not null then ${runState} else ${turnState} end as state,
    coalesce(g.updated_at, r.updated_at, c.created_at) as updated_at, coalesce(c.refusal, r.error, g.error) as failure,
    g.id as turn_id, g.status as turn_status, g.required_action -> 'tool_calls' as tool_calls, p.pending as approvals,
    r.required_actions as actions, coalesce(s.control = 'operator', false) as operated,
    coalesce(g.content_mode = 'none', false) as unstored,
    ${withAnswers ? sql.fragment`g.output ->> 'content'` : sql.fragment`null::text`} as content,
    ${withAnswers ? sql.fragment`coalesce(g.output -> 'object', r.output::jsonb)` : sql.fragment`null::jsonb`} as object
  from chosen c
  left join latest g on g.task_id = c.id left join decisions p on p.task_id = c.id
  left join orchestration_runs r on r.id = c.run_id left join sessions s on s.id = c.session_id
  where c.refusal is not null or g.id is not null or r.id is not null`

/** Whose tasks of a target. */
export type Owner = { target_id: string; principal_id: string; project_id: string }

const isOwn = ({ target_id, principal_id, project_id }: Owner): Fragment => sql.fragment`
  t.target_id = ${target_id} and t.principal_id = ${principal_id} and t.project_id = ${project_id}`

/** Returns a task of an owner; null for any other. */
export const findTask = (db: Queryable, owner: Owner, id: string): Promise<TaskRow | null> =>
  db.maybeOne(
    taskRow`${tasksQuery(sql.fragment`select t.* from a2a_tasks t where t.id = ${id} and ${isOwn(owner)}`, true)}`,
  )

/** Lists tasks by their IDs, without answers. */
export const listTasksById = (db: Queryable, ids: readonly string[]): Promise<readonly TaskRow[]> =>
  db.any(
    taskRow`${tasksQuery(sql.fragment`select t.* from a2a_tasks t where t.id = any(${sql.array([...ids], 'text')})`, false)}`,
  )

type TaskFilter = { context_id: string | null; status: string | null; updated_after: Date | null }
type TaskPage = { limit: number; offset: number; withAnswers: boolean }

const inContext = (owner: Owner, { context_id }: Pick<TaskFilter, 'context_id'>): Fragment =>
  allOf([isOwn(owner), context_id !== null && sql.fragment`t.context_id = ${context_id}`])

const filtersStates = ({ status, updated_after }: TaskFilter): boolean => status !== null || updated_after !== null

/** Returns a from clause with the tasks `x` of an owner and the condition of a filter by state. */
const tasksInState = (owner: Owner, filter: TaskFilter, withAnswers: boolean): Fragment => sql.fragment`
  from (${tasksQuery(sql.fragment`select t.* from a2a_tasks t where ${inContext(owner, filter)}`, withAnswers)}) x
  join a2a_tasks t on t.id = x.id
  where ${allOf([
    filter.status !== null && sql.fragment`x.state = ${filter.status}`,
    filter.updated_after !== null && sql.fragment`x.updated_at > ${filter.updated_after.toISOString()}::timestamptz`,
  ])}`

/**
 * Lists the tasks of an owner, newest first. By a2a_tasks_own. A filter by state reads all tasks of the context, or of the
 * target without one.
 */
export function listTasks(
  db: Queryable,
  owner: Owner,
  filter: TaskFilter,
  { limit, offset, withAnswers }: TaskPage,
): Promise<readonly TaskRow[]> {
  const page = sql.fragment`order by t.created_at desc, t.id desc limit ${limit} offset ${offset}`
  if (filtersStates(filter)) return db.any(taskRow`select x.* ${tasksInState(owner, filter, withAnswers)} ${page}`)
  const chosen = sql.fragment`select t.* from a2a_tasks t where ${inContext(owner, filter)} ${page}`
  return db.any(taskRow`${tasksQuery(chosen, withAnswers)} order by c.created_at desc, c.id desc`)
}

export const countTasks = (db: Queryable, owner: Owner, filter: TaskFilter): Promise<number> =>
  db.oneFirst(
    filtersStates(filter)
      ? countStatement`select count(*) ${tasksInState(owner, filter, false)}`
      : countStatement`select count(*) from a2a_tasks t where ${inContext(owner, filter)}`,
  )

const contextRow = sql.type(z.object({ session_id: z.string().nullable() }))

/** Returns the session of a context of an owner, which is null for an orchestration; null for an unknown context. By a2a_tasks_context. */
export const findContext = (db: Queryable, owner: Owner, id: string): Promise<{ session_id: string | null } | null> =>
  db.maybeOne(contextRow`select t.session_id from a2a_tasks t where t.context_id = ${id} and ${isOwn(owner)} limit 1`)

/** A message by the IDs of the client. */
export type MessageKey = Owner & { message: Buffer }

/** Returns the key of a message: IDs of messages are unique in a context. */
export const messageKey = (
  owner: Owner,
  { messageId, contextId, taskId }: { messageId: string; contextId: string | null; taskId: string | null },
): MessageKey => ({
  ...owner,
  message: createHash('sha256')
    .update(JSON.stringify([owner.target_id, owner.principal_id, contextId, taskId, messageId]))
    .digest(),
})

/** Returns the task of a message that was sent before, or null. */
export const findTaskOfMessage = async (db: Queryable, key: MessageKey): Promise<string | null> =>
  (
    await db.maybeOne(idStatement`
      select m.task_id as id from a2a_messages m
      where m.target_id = ${key.target_id} and m.principal_id = ${key.principal_id} and m.message = ${sql.binary(key.message)}`)
  )?.id ?? null

/** Records the message of a task. Returns false if it was recorded before. */
export const recordMessage = async (db: Queryable, key: MessageKey, taskId: string): Promise<boolean> =>
  (
    await db.query(voidStatement`
      insert into a2a_messages (target_id, principal_id, message, task_id)
      values (${key.target_id}, ${key.principal_id}, ${sql.binary(key.message)}, ${taskId})
      on conflict do nothing`)
  ).rowCount === 1

type NewTask = {
  id: string
  context_id: string
  session_id?: string
  generation_id?: string
  run_id?: string
  refusal?: RecordedFailure
}

/** Records a task with its message. Returns false if the message was recorded before. */
export const recordTask = async (db: Queryable, key: MessageKey, task: NewTask): Promise<boolean> =>
  (
    await db.query(voidStatement`
      with task as (
        insert into a2a_tasks (id, project_id, target_id, principal_id, context_id, session_id, generation_id, run_id, refusal)
        select ${task.id}, ${key.project_id}, ${key.target_id}, ${key.principal_id}, ${task.context_id},
          ${task.session_id ?? null}, ${task.generation_id ?? null}, ${task.run_id ?? null},
          ${task.refusal ? JSON.stringify(task.refusal) : null}::jsonb
        where not exists (select from a2a_messages m where m.target_id = ${key.target_id}
          and m.principal_id = ${key.principal_id} and m.message = ${sql.binary(key.message)})
        on conflict do nothing
        returning id
      )
      insert into a2a_messages (target_id, principal_id, message, task_id)
      select ${key.target_id}, ${key.principal_id}, ${sql.binary(key.message)}, task.id from task
      on conflict do nothing`)
  ).rowCount === 1

/** Locks tasks until the transaction ends, in the order of their IDs. */
export const lockTasks = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select t.id from a2a_tasks t where t.id = any(${sql.array([...ids], 'text')}) order by t.id for no key update`)

/** Records the state of which the addresses of a task are notified. */
export const recordNotified = (db: Queryable, states: readonly { id: string; state: string }[]): Promise<unknown> =>
  db.query(voidStatement`
    update a2a_tasks t set notified_state = n.state
    from ${sql.unnest(
      states.map(({ id, state }) => [id, state]),
      ['text', 'text'],
    )} as n (id, state) where t.id = n.id`)

const addressRow = sql.type(z.object({ id: z.string(), project_id: z.string(), task_id: z.string() }))

/** Lists the addresses of tasks. By webhooks_task. */
export const listAddresses = (db: Queryable, taskIds: readonly string[]) =>
  db.any(addressRow`
    select w.id, w.project_id, w.task_id from webhooks w where w.task_id = any(${sql.array([...taskIds], 'text')})`)

/** Condition that a task of a project has an address. By webhooks_notified. */
export const hasAddress = (project: Fragment): Fragment => sql.fragment`
  exists (select from webhooks w where w.project_id = ${project} and w.task_id is not null)`

/** What changed, by the IDs of its kinds. */
type Changes = { sessions: readonly string[]; approvals: readonly string[]; runs: readonly string[] }

/** States in which the task of a turn does not change any more; a run may be retried. */
const ENDED = TASK_STATES.filter(isTerminal)

/**
 * Lists the tasks with addresses that changes concern, of a session without those whose end was notified: a context may have
 * many. By a2a_tasks_session, a2a_tasks_run and webhooks_task.
 */
export const listConcernedTasks = (db: Queryable, { sessions, approvals, runs }: Changes): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select t.id from a2a_tasks t
    where (t.session_id = any(${sql.array([...sessions], 'text')} || array(
        select a.session_id from approvals a where a.id = any(${sql.array([...approvals], 'text')}) and a.session_id is not null))
        and (t.notified_state is null or t.notified_state <> all(${sql.array(ENDED, 'text')}))
      or t.run_id = any(${sql.array([...runs], 'text')}))
      and exists (select from webhooks w where w.task_id = t.id)`)

/** Deletes tasks of refused messages from before a month. By a2a_tasks_refused. */
export const deleteOldRefusals = async (db: Queryable, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from a2a_tasks where id = any (array(
        select id from a2a_tasks where refusal is not null and created_at < now() - interval '30 days' limit ${limit}))`)
  ).rowCount
