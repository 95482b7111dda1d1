import { columnFilter, equalsFilter, type Filters, oneOf } from '../../core/api/filters.ts'
import { enumListQuery, pageOf, pageResult, textFilter, timeOrDateInput } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import { sql } from '../../core/db/sql.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { boardOperation } from './board.ts'
import { changeTask } from './change.ts'
import { createTask, depthOfCreate } from './create.ts'
import { removeTask } from './delete-task.ts'
import { TaskTransition, type TransitionRow, transitionColumns } from './history.ts'
import {
  AUTOMATION_STATUSES,
  PauseTaskInput,
  TASK_STATUSES,
  Task,
  TaskDetail,
  TaskInput,
  TaskPatch,
  TransitionInput,
  taskKind,
} from './model.ts'
import { pauseTask, resumeTask, retryTask } from './pause.ts'
import { taskBytes } from './store.ts'
import { machineOf, moveTask, transitionActor } from './transition.ts'

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
      'One `automation_status` or several, by repeating it; `none` is null',
    ),
    chosen =>
      sql.fragment`coalesce(t.automation_status, 'none') = any(${sql.array(chosen as unknown as string[], 'text')})`,
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
  // tasks_project serves the order; tasks_workflow, tasks_assignee and tasks_due their filters.
  tasks.list({
    filters,
    bytes: taskBytes,
    description: 'A page ends before 16 MiB of payloads and results: `limit` says how many it was cut to.',
  }),
  operation({
    id: 'createTask',
    method: 'post',
    path,
    summary: 'Create a task',
    description:
      'It is pinned to the current version of its workflow and begins in the initial state or the one that is named, which starts the work of that state.',
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
    async run(context) {
      const { tx, services, body, project, caller } = context
      const { tool_context, payload = {}, metadata = null, assignee = null, due_at = null } = body
      const bag = callerContext(tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
      const { workflow_id, title, state } = body
      const given = { workflow_id, title, state, payload, metadata, assignee, due_at, project_id: project as string }
      const depth = await depthOfCreate(context)
      const who = { by: transitionActor(caller), authority: principalRecord(caller), depth }
      return taskKind.present(await createTask(tx, services, { ...given, ...who, tool_context: bag }))
    },
  }),
  tasks.get({
    answers: { 200: TaskDetail },
    async present({ resource: task, services }) {
      const machine = await machineOf(services, services.pool, task)
      const leads = task.status === 'closed' ? [] : machine.from(task.state)
      const available_transitions = leads.map(({ name, to, requires_approval = false }) => ({
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
    summary: 'Change a task',
    description: 'Keys of `payload` replace those that are there. The state moves by transitions alone.',
    tag,
    action: 'tasks:UpdateTask',
    body: TaskPatch,
    bodyLimit: () => 2 * 1024 * 1024,
    answers: { 200: Task },
    raises: ['TASK_PAYLOAD_INVALID'],
    run: async ({ tx, services, resource, body }) =>
      taskKind.present(await changeTask(tx, services, resource.id, body ?? {})),
  }),
  tasks.remove({
    description: 'With its history. What it has under way is cancelled, and the approval of a transition withdrawn.',
    check: (row, { tx, services }) => removeTask(tx, services, row),
  }),
  itemOperation(taskKind, {
    id: 'transitionTask',
    command: ['tasks', 'transition'],
    method: 'post',
    path: `${path}/{task_id}/transitions`,
    summary: 'Move a task to another state',
    description:
      'By a transition of the version that the task is pinned to. One that requires approval is left pending. Of two at once one is made, and the other one judged by what that came to.',
    tag,
    action: 'tasks:TransitionTask',
    body: TransitionInput,
    answers: { 200: Task },
    raises: [
      'TASK_TRANSITION_NOT_FOUND',
      'INVALID_TOOL_CONTEXT_KEY',
      'TASK_TRANSITION_CONFLICT',
      'TASK_GUARD_REJECTED',
      'TASK_AUTOMATION_CHAIN_LIMIT',
    ],
    transaction: false,
    run: async context => taskKind.present(await moveTask(context as never, context.body)),
  }),
  itemOperation(taskKind, {
    id: 'listTaskHistory',
    method: 'get',
    path: `${path}/{task_id}/history`,
    summary: 'List what happened to a task, oldest first',
    description: 'Transitions, pauses and dispatches with who or what caused them.',
    tag,
    action: 'tasks:GetTask',
    paged: true,
    answers: { 200: pageOf(TaskTransition) },
    // The unique index of task_transitions.
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
    summary: 'Have a task start no work until it is resumed',
    description: 'Transitions go on, and so does what is under way. The first reason stays.',
    body: PauseTaskInput,
    bodyOptional: true,
    answers: { 200: Task },
    raises: ['TASK_TRANSITION_CONFLICT'],
    run: async ({ tx, services, resource, body }) =>
      taskKind.present(await pauseTask(tx, services, resource.id, body?.reason ?? null)),
  }),
  tasks.action('resume', {
    summary: 'End the pause of a task and start what it held, as the caller',
    description: 'Holds for the automation of the state that the task is in.',
    answers: { 200: Task },
    raises: ['PROJECT_PAUSED'],
    run: async ({ tx, services, resource, caller }) =>
      taskKind.present(await resumeTask(tx, services, resource, principalRecord(caller))),
  }),
  tasks.action('retry', {
    summary: 'Start the work of the state again, as the caller',
    description:
      'For a task whose dispatch failed, or led nowhere: attempts and the chain of moves are counted anew, but for a call of a machine, which counts as a move of it.',
    answers: { 200: Task },
    raises: ['TASK_TRANSITION_CONFLICT', 'TASK_AUTOMATION_CHAIN_LIMIT'],
    run: async ({ tx, services, resource, caller }) =>
      taskKind.present(await retryTask(tx, services, resource.id, caller)),
  }),
  boardOperation,
]
