import { isDeepStrictEqual } from 'node:util'
import { columnFilter, equalsFilter, type Filters, oneOf } from '#core/api/filters.ts'
import { enumListQuery, pageOf, pageResult, textFilter, timeOrDateInput } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { callerContext } from '#core/api/tool-context.ts'
import type { Problem } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import type { Tx } from '#core/writes/writer.ts'
import { boardOperation } from './board.ts'
import { createdTaskDepth, createTask, prepareTask } from './create.ts'
import { cancelTaskWork } from './delete-task.ts'
import { TaskTransition, type TransitionRow, transitionColumns } from './history.ts'
import {
  AUTOMATION_STATUSES,
  PauseTaskInput,
  TASK_STATUSES,
  Task,
  TaskDetail,
  TaskInput,
  TaskPatch,
  type TaskRow,
  TransitionInput,
  taskKind,
} from './model.ts'
import { pauseTask, resumeTask, retryTask } from './pause.ts'
import { payloadInvalidError, payloadProblems } from './payload.ts'
import { taskBytes } from './store.ts'
import { plainChange, withUpdatedAt } from './task-change.ts'
import { machineOf, moveTask, transitionActor } from './transition.ts'
import { writeChange } from './write.ts'

const tag = 'Tasks'
const path = '/tasks'
const tasks = resource(taskKind, { path, tag })

const dueAt = sql.fragment`t.due_at`

const filters = {
  workflow_id: equalsFilter('workflow_id'),
  state: equalsFilter('state'),
  assignee: equalsFilter('assignee'),
  status: oneOf('status', TASK_STATUSES),
  automation_status: columnFilter(
    enumListQuery([...AUTOMATION_STATUSES, 'none']).describe(
      'Automation status. Repeat the parameter for several; `none` matches null.',
    ),
    statuses =>
      sql.fragment`coalesce(t.automation_status, 'none') = any(${sql.array(statuses as unknown as string[], 'text')})`,
  ),
  due_from: columnFilter(
    textFilter.pipe(timeOrDateInput.optional()).describe('Due at this time or later'),
    time => sql.fragment`${dueAt} >= ${time}::timestamptz`,
  ),
  due_to: columnFilter(
    textFilter.pipe(timeOrDateInput.optional()).describe('Due at this time or earlier'),
    time => sql.fragment`${dueAt} <= ${time}::timestamptz`,
  ),
} satisfies Filters

export const taskOperations: Operation[] = [
  // tasks_project serves the order; tasks_workflow, tasks_assignee and tasks_due serve the filters.
  tasks.list({
    filters,
    bytes: taskBytes,
    description:
      'A page holds at most 16 MiB of payloads and results; `limit` in the response is the reduced page size.',
  }),
  operation({
    id: 'createTask',
    method: 'post',
    path,
    summary: 'Create a task',
    description:
      'The task is pinned to the current version of its workflow. It starts in the initial state or the given state, and the automation of that state starts.',
    tag,
    action: 'tasks:CreateTask',
    creates: taskKind,
    body: TaskInput,
    bodyLimit: () => 2 * 1024 * 1024,
    answers: { 201: Task },
    raises: [
      'TASK_PAYLOAD_INVALID',
      'TASK_STATE_NOT_FOUND',
      'INVALID_TOOL_CONTEXT_KEY',
      'WORKFLOW_NOT_FOUND',
      'TASK_AUTOMATION_CHAIN_LIMIT',
    ],
    async prepare({ services, db, body, project }) {
      const tool_context = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
      return { tool_context, ...(await prepareTask(services, db, project as string, body)) }
    },
    async run(context) {
      const { tx, services, body, project, caller, prepared } = context
      const { title, payload = {}, metadata = null, assignee = null, due_at = null } = body
      const fields = { title, payload, metadata, assignee, due_at, project_id: project as string }
      const depth = await createdTaskDepth(context)
      const origin = { by: transitionActor(caller), authority: principalRecord(caller), depth }
      return taskKind.present(await createTask(tx, services, { ...fields, ...origin, ...prepared }))
    },
  }),
  tasks.get({
    answers: { 200: TaskDetail },
    async present({ resource: task, services }) {
      const machine = await machineOf(services, services.pool, task)
      const transitions = task.status === 'closed' ? [] : machine.from(task.state)
      const available_transitions = transitions.map(({ name, to, requires_approval = false }) => ({
        name,
        to,
        requires_approval,
      }))
      return { ...taskKind.present(task), available_transitions }
    },
  }),
  itemOperation(taskKind, {
    id: 'updateTask',
    method: 'patch',
    path: `${path}/{task_id}`,
    summary: 'Update a task',
    description:
      'Keys of `payload` replace those keys of the current payload; other keys are unchanged. Only transitions change the state.',
    tag,
    action: 'tasks:UpdateTask',
    body: TaskPatch,
    bodyLimit: () => 2 * 1024 * 1024,
    answers: { 200: Task },
    raises: ['TASK_PAYLOAD_INVALID'],
    prepare: ({ services, db, resource, body }) => patchPayload(services, db, resource, body),
    run: async ({ tx, services, resource, body, prepared }) =>
      taskKind.present(await updateTask(tx, services, resource.id, body, prepared)),
  }),
  tasks.remove({
    description: 'Deletes the task and its history, cancels its active work and withdraws its pending approval.',
    check: (row, { tx, services }) => cancelTaskWork(tx, services, row),
  }),
  itemOperation(taskKind, {
    id: 'transitionTask',
    command: ['tasks', 'transition'],
    method: 'post',
    path: `${path}/{task_id}/transitions`,
    summary: 'Apply a transition to a task',
    description:
      'Uses the transitions of the workflow version that the task is pinned to. A transition that requires approval remains pending until it is resolved. Concurrent requests are applied one after the other, each to the resulting state.',
    tag,
    action: 'tasks:TransitionTask',
    body: TransitionInput,
    answers: { 200: Task },
    decision: ({ body: { transition, note } }) => ({ decision: transition, reason: note }),
    raises: [
      'TASK_TRANSITION_NOT_FOUND',
      'INVALID_TOOL_CONTEXT_KEY',
      'TASK_TRANSITION_CONFLICT',
      'TASK_GUARD_REJECTED',
      'TASK_AUTOMATION_CHAIN_LIMIT',
    ],
    run: async context => taskKind.present(await moveTask(context as never, context.body)),
  }),
  itemOperation(taskKind, {
    id: 'listTaskHistory',
    method: 'get',
    path: `${path}/{task_id}/history`,
    summary: 'List the history of a task',
    description: 'Oldest first: its creation, transitions and denied transitions, each with its cause.',
    tag,
    action: 'tasks:GetTask',
    paged: true,
    answers: { 200: pageOf(TaskTransition) },
    // By the unique index of task_transitions.
    run: context =>
      pageResult<TransitionRow>(context, {
        columns: transitionColumns,
        from: sql.fragment`task_transitions t`,
        rows: sql.fragment`t.task_id = ${context.resource.id}`,
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.seq`,
        key: sql.fragment`t.id`,
        present: row => row,
      }),
  }),
  tasks.action('pause', {
    summary: 'Pause a task',
    description:
      'The task starts no automation until it is resumed. Transitions remain possible and active work continues. Pausing a paused task keeps the first reason.',
    body: PauseTaskInput,
    bodyOptional: true,
    answers: { 200: Task },
    raises: ['TASK_TRANSITION_CONFLICT'],
    run: async ({ tx, services, resource, body }) =>
      taskKind.present(await pauseTask(tx, services, resource.id, body?.reason ?? null)),
  }),
  tasks.action('resume', {
    summary: 'Resume a task',
    description: 'Starts the deferred automation of the current state with the permissions of the caller.',
    answers: { 200: Task },
    raises: ['PROJECT_PAUSED'],
    run: async ({ tx, services, resource, caller }) =>
      taskKind.present(await resumeTask(tx, services, resource, principalRecord(caller))),
  }),
  tasks.action('retry', {
    summary: 'Retry the automation of a task',
    description:
      'Restarts the automation of the current state, with the permissions of the caller, if its automation_status is failed or unrouted. Resets the attempt count and the automation chain depth; a retry by automation raises the depth by 1 instead.',
    answers: { 200: Task },
    raises: ['TASK_TRANSITION_CONFLICT', 'TASK_AUTOMATION_CHAIN_LIMIT'],
    run: async ({ tx, services, resource, caller }) =>
      taskKind.present(await retryTask(tx, services, resource.id, caller)),
  }),
  boardOperation,
]

type Patch = Partial<Pick<TaskRow, 'title' | 'assignee' | 'due_at' | 'payload'>>
type PatchedPayload = { payload: TaskRow['payload']; problems: Problem[] }

/** Returns the payload that a patch makes of a task, with its problems. */
async function patchPayload(
  services: Services,
  db: Queryable,
  task: TaskRow,
  body: Patch,
): Promise<PatchedPayload | undefined> {
  if (body.payload === undefined) return undefined
  const payload = { ...task.payload, ...body.payload }
  const machine = await machineOf(services, db, task)
  return { payload, problems: await payloadProblems(services, task.project_id, machine, payload) }
}

/**
 * Updates fields of a task under its row lock, so that concurrent patches of different fields all take effect. A patch
 * without a change emits no event. A payload that has changed since the check is checked again under the lock.
 * @throws TASK_NOT_FOUND, TASK_PAYLOAD_INVALID
 */
async function updateTask(
  tx: Tx,
  services: Services,
  id: string,
  body: Patch,
  checked: PatchedPayload | undefined,
): Promise<TaskRow> {
  const task = await taskKind.lock(tx, id)
  const fields = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined))
  const next: TaskRow = { ...task, ...fields, payload: { ...task.payload, ...body.payload } }
  const changed = Object.keys(fields).filter(
    name => !isDeepStrictEqual(task[name as keyof TaskRow], next[name as keyof TaskRow]),
  )
  if (changed.length === 0) return task
  if (changed.includes('payload')) {
    const isChecked = isDeepStrictEqual(checked?.payload, next.payload)
    const { problems = [] } = (isChecked ? checked : await patchPayload(services, tx, task, body)) ?? {}
    if (problems.length > 0) throw payloadInvalidError(problems)
  }
  const after = withUpdatedAt(next, services.clock.now().toISOString(), {})
  return writeChange(tx, services, plainChange(task, after, { events: [{ verb: 'updated', extra: { changed } }] }))
}
