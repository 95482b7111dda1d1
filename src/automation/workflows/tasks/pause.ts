import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type Caller, isBackgroundWork, type PrincipalRecord, principalRecord } from '#core/iam/caller.ts'
import { handler } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { isUnanswered } from '#execution/tools/unanswered.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { lockPauseState } from '#identity/projects/store.ts'
import type { WorkflowState } from '../definition/definition.ts'
import { pinnedMachine } from '../definition/pinned-workflow.ts'
import { type TaskRow, taskKind } from './model.ts'
import { projectTasksQueue, wakeDispatch } from './queue.ts'
import { findApprovedEntry, listDeferredTasks, lockTask, releaseDispatch, taskUpdate } from './store.ts'
import { activeDispatch, plainChange, restartDispatch, type TaskChange, withUpdatedAt } from './task-change.ts'
import { withPendingTransition } from './transition-approval.ts'
import { writeChange } from './write.ts'

const nowText = ({ clock }: Services): string => clock.now().toISOString()

/** Pauses the automation of a task. A paused task keeps its first reason. @throws TASK_TRANSITION_CONFLICT if closed */
export async function pauseTask(tx: Tx, services: Services, id: string, reason: string | null): Promise<TaskRow> {
  const task = await taskKind.lock(tx, id)
  if (task.status === 'closed')
    return raise('TASK_TRANSITION_CONFLICT', {
      message: `Task ${id} is closed and cannot be paused`,
      meta: { status: task.status },
    })
  if (task.pause_requested_at !== null) return task
  const now = nowText(services)
  const after = withUpdatedAt(task, now, { pause_requested_at: now, pause_reason: reason })
  return writeChange(tx, services, plainChange(task, after, { events: [{ verb: 'paused' }] }))
}

/** Resumes a task and releases its deferred dispatch with the permissions of the caller. @throws PROJECT_PAUSED */
export async function resumeTask(
  tx: Tx,
  services: Services,
  { id, project_id }: TaskRow,
  by: PrincipalRecord,
): Promise<TaskRow> {
  const task = await taskKind.lock(tx, id)
  await lockUnpaused(tx, project_id)
  const isDeferred = task.automation_status === 'paused'
  if (task.pause_requested_at === null && !isDeferred) return task
  const events: TaskChange['events'] = task.pause_requested_at === null ? [] : [{ verb: 'resumed' }]
  const unpaused = { ...task, pause_requested_at: null, pause_reason: null }
  const after = isDeferred
    ? await releaseDeferred(tx, services, unpaused, by)
    : withUpdatedAt(unpaused, nowText(services), {})
  return writeChange(tx, services, plainChange(task, after, { events }))
}

/** Queues the deferred dispatch of a task under `authority`. Returns the changed task for the caller to write. */
async function releaseDeferred(
  tx: Tx,
  services: Services,
  task: TaskRow,
  authority: PrincipalRecord,
): Promise<TaskRow> {
  const machine = await pinnedMachine(services, tx, task)
  const released = await releaseDispatch(tx, task.id)
  if (released) wakeDispatch(tx, { entity: task.id, id: released.id, project_id: task.project_id })
  return withUpdatedAt(task, nowText(services), {
    automation_status: 'running',
    active_dispatch: activeDispatch(machine?.state(task.state) as WorkflowState, released?.attempt ?? 1),
    authority,
  })
}

/**
 * Restarts the dispatch of a task's state with the permissions of the caller. A retry by automation counts as an
 * automated move, which bounds tasks that retry each other. If an approval released the dispatch and its call may have been
 * made, the approval is requested again.
 * @throws TASK_TRANSITION_CONFLICT unless the dispatch failed or is unrouted, TASK_AUTOMATION_CHAIN_LIMIT
 */
export async function retryTask(tx: Tx, services: Services, id: string, caller: Caller): Promise<TaskRow> {
  const task = await lockTask(tx, id)
  const { automation_status, status, pending_transition } = task
  const machine = await pinnedMachine(services, tx, task)
  const state = machine?.state(task.state)
  const isRetryable = automation_status === 'failed' || automation_status === 'unrouted'
  if (!state?.on_enter || status === 'closed' || !isRetryable || pending_transition !== null)
    return raise('TASK_TRANSITION_CONFLICT', {
      message: `The automation of task ${id} cannot be retried`,
      meta: { automation_status, status, pending_transition },
    })
  const limit = services.config.TASK_AUTOMATION_CHAIN_LIMIT
  const depth = isBackgroundWork(caller) ? task.automation_chain_depth + 1 : 0
  if (depth > limit) raise('TASK_AUTOMATION_CHAIN_LIMIT', { meta: { task_id: id, limit } })
  const authority = principalRecord(caller)
  const approved = mayHaveCalled(task, state) ? await findApprovedEntry(tx, task) : null
  if (approved === null) return writeChange(tx, services, restartDispatch(services, task, state, { authority, depth }))
  const gate = { authority, context: false, restarts: true } as const
  return writeChange(
    tx,
    services,
    plainChange(task, await withPendingTransition(tx, services, task, approved, gate, null)),
  )
}

/** Whether the ended dispatch of a task may have had an effect, so that another one needs another approval. */
function mayHaveCalled({ automation_status, automation_error }: TaskRow, { on_enter }: WorkflowState): boolean {
  if (automation_status === 'unrouted' || on_enter?.dispatch.kind !== 'tool') return true
  // Only the error of the last attempt is known.
  if ((on_enter.retry?.max_attempts ?? 1) > 1) return true
  return isUnanswered(automation_error?.code, automation_error?.meta?.tool_status_code)
}

/** Tasks per transaction. */
const BATCH = 200

/** Queues the release of a resumed project's deferred dispatches under `authority`. */
export async function resumeTasks(tx: Tx, project_id: string, authority: PrincipalRecord): Promise<void> {
  tx.send(projectTasksQueue, { project_id, after: '', authority })
}

/** Releases one batch of a project's deferred dispatches and queues the next. Stops if the project is paused again. */
export const projectTasksHandler = handler(projectTasksQueue, { concurrency: 1 }, (message, { services }) =>
  services.write(async tx => {
    const { project_id, after, authority } = message
    const project = await lockPauseState(tx, project_id)
    if (!project || project.paused_at !== null) return
    const ids = await listDeferredTasks(tx, project_id, after, BATCH)
    for (const id of ids) {
      const task = await taskKind.find(tx, id, true)
      if (task?.automation_status !== 'paused' || task.pause_requested_at !== null) continue
      const next = await releaseDeferred(tx, services, task, authority as PrincipalRecord)
      tx.alongside(guard => taskUpdate(task, next, guard))
    }
    if (ids.length === BATCH) tx.send(projectTasksQueue, { project_id, after: ids[ids.length - 1], authority })
  }),
)
