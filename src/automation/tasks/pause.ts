import { raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type Caller, isBackgroundWork, type PrincipalRecord, principalRecord } from '../../core/iam/caller.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import type { Services } from '../../core/process/services.ts'
import { lockUnpaused } from '../../identity/projects/pause.ts'
import { lockPauseState } from '../../identity/projects/store.ts'
import type { WorkflowState } from '../workflows/definition.ts'
import { pinnedMachine } from '../workflows/pinned-workflow.ts'
import { type TaskRow, taskKind } from './model.ts'
import { projectTasksQueue, taskDispatchQueue } from './queue.ts'
import { findDispatch, listDeferredTasks, releaseDispatch, taskUpdate } from './store.ts'
import { activeDispatch, dispatchOf, plainChange, type TaskChange, withUpdatedAt } from './task-change.ts'
import { writeChange } from './write.ts'

const nowOf = ({ clock }: Services): string => clock.now().toISOString()

/** Has a task start nothing until it is resumed: the first reason stays. @throws TASK_TRANSITION_CONFLICT when it is closed */
export async function pauseTask(tx: Tx, services: Services, id: string, reason: string | null): Promise<TaskRow> {
  const task = await taskKind.lock(tx, id)
  if (task.status === 'closed')
    return raise('TASK_TRANSITION_CONFLICT', { message: 'The task is closed', meta: { status: task.status } })
  if (task.pause_requested_at !== null) return task
  const now = nowOf(services)
  const after = withUpdatedAt(task, now, { pause_requested_at: now, pause_reason: reason })
  return writeChange(tx, services, plainChange(task, after, { events: [{ verb: 'paused' }] }))
}

/** Ends the pause of a task, and makes what it held, as the caller. @throws PROJECT_PAUSED */
export async function resumeTask(
  tx: Tx,
  services: Services,
  { id, project_id }: TaskRow,
  by: PrincipalRecord,
): Promise<TaskRow> {
  const held = await findDispatch(tx, id, null, true)
  const task = held?.task ?? (await taskKind.lock(tx, id))
  await lockUnpaused(tx, project_id)
  const releases = held?.dispatch.dispatch_state === 'held'
  if (task.pause_requested_at === null && !releases) return task
  const events: TaskChange['events'] = task.pause_requested_at === null ? [] : [{ verb: 'resumed' }]
  const lifted = { ...task, pause_requested_at: null, pause_reason: null }
  const after = releases
    ? await release(tx, services, lifted, by, held.dispatch.attempt)
    : withUpdatedAt(lifted, nowOf(services), {})
  return writeChange(tx, services, plainChange(task, after, { events }))
}

/** Has the dispatch of a task that was held made, as somebody: the task as it is then, which the caller writes. */
async function release(
  tx: Tx,
  services: Services,
  task: TaskRow,
  authority: PrincipalRecord,
  attempt: number,
): Promise<TaskRow> {
  const machine = await pinnedMachine(services, tx, task)
  const dispatch_id = await releaseDispatch(tx, task.id)
  const { id: task_id, project_id } = task
  if (dispatch_id !== null) tx.send(taskDispatchQueue, { task_id, dispatch_id, project_id })
  return withUpdatedAt(task, nowOf(services), {
    automation_status: 'running',
    active_dispatch: activeDispatch(machine?.state(task.state) as WorkflowState, attempt),
    authority,
  })
}

/**
 * Makes the dispatch of the state again, as the caller. What a machine makes again counts as a move of a machine: tasks that
 * make each other's work again come to an end.
 * @throws TASK_TRANSITION_CONFLICT unless it failed or led nowhere, TASK_AUTOMATION_CHAIN_LIMIT
 */
export async function retryTask(tx: Tx, services: Services, id: string, caller: Caller): Promise<TaskRow> {
  const task = await taskKind.lock(tx, id)
  const { automation_status, status, pending_transition } = task
  const machine = await pinnedMachine(services, tx, task)
  const state = machine?.state(task.state)
  const stands = automation_status === 'failed' || automation_status === 'unrouted'
  if (!state?.on_enter || status === 'closed' || !stands || pending_transition !== null)
    return raise('TASK_TRANSITION_CONFLICT', {
      message: 'Only a dispatch that failed or led nowhere is made again',
      meta: { automation_status, status, pending_transition },
    })
  const limit = services.config.TASK_AUTOMATION_CHAIN_LIMIT
  const depth = isBackgroundWork(caller) ? task.automation_chain_depth + 1 : 0
  if (depth > limit) raise('TASK_AUTOMATION_CHAIN_LIMIT', { meta: { task_id: id, limit } })
  const held = task.pause_requested_at !== null
  // A name of its own: what became of an earlier one of the state is not heard of.
  const entry_seq = task.entry_seq + 1
  const after = withUpdatedAt(task, nowOf(services), {
    entry_seq,
    automation_status: held ? 'paused' : 'running',
    automation_error: null,
    active_dispatch: held ? null : activeDispatch(state, 1),
    automation_chain_depth: depth,
    authority: principalRecord(caller),
  })
  return writeChange(tx, services, plainChange(task, after, { dispatch: dispatchOf(after, state, { held }) }))
}

/** Tasks that are looked at in one transaction. */
const BATCH = 200

/** Has what the pause of a project held made, once that has ended, as whoever ended it. */
export async function resumeTasks(tx: Tx, project_id: string, authority: PrincipalRecord): Promise<void> {
  tx.send(projectTasksQueue, { project_id, after: '', authority })
}

/** Releases a batch of what the pause of a project held, and no more once it is paused again. */
export const releaseDeferredDispatches = (
  { project_id, after, authority }: { project_id: string; after: string; authority: unknown },
  { services }: JobContext,
): Promise<void> =>
  services.write(async tx => {
    const project = await lockPauseState(tx, project_id)
    if (!project || project.paused_at !== null) return
    const ids = await listDeferredTasks(tx, project_id, after, BATCH)
    for (const id of ids) {
      const held = await findDispatch(tx, id, null, true)
      if (held?.dispatch.dispatch_state !== 'held' || held.task.pause_requested_at !== null) continue
      const { task, dispatch } = held
      const next = await release(tx, services, task, authority as PrincipalRecord, dispatch.attempt)
      tx.alongside(guard => taskUpdate(task, next, guard))
    }
    if (ids.length === BATCH) tx.send(projectTasksQueue, { project_id, after: ids[ids.length - 1], authority })
  })
