import { cancelRun } from '#automation/orchestrations/runs/commands/command.ts'
import { timeIn } from '#core/base/clock.ts'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { lockPauseState } from '#identity/projects/store.ts'
import { type TaskRow, taskKind } from './model.ts'
import { wakeDispatch } from './queue.ts'
import { dispatchDelete, dispatchWrite, historyInsert, taskUpdate } from './store.ts'
import type { NewDispatch, TaskChange } from './task-change.ts'

/** Returns the change with its dispatch deferred. */
function withDeferredDispatch(change: TaskChange): TaskChange {
  const { dispatch, after } = change
  if (dispatch === null || dispatch === 'clear') return change
  return {
    ...change,
    dispatch: { ...dispatch, state: 'held' },
    after: { ...after, automation_status: 'paused', active_dispatch: null },
  }
}

const isQueued = (dispatch: TaskChange['dispatch']): dispatch is NewDispatch =>
  dispatch !== null && dispatch !== 'clear' && dispatch.state === 'queued'

/** Adds the events of a change and the message of its dispatch to the outbox. */
export function emitChange(outbox: Outbox, { after, dispatch, events }: TaskChange): void {
  for (const { verb, extra, row = after } of events) outbox.emit(taskKind, verb, row, extra ? { extra } : {})
  if (!isQueued(dispatch)) return
  const { task_id, id, project_id, delay_ms } = dispatch
  const options = delay_ms > 0 ? { startAfter: timeIn(delay_ms) } : {}
  wakeDispatch(outbox, { entity: task_id, id, project_id }, options)
}

/** Writes or deletes the dispatch row along with the last statement of a change. */
export function writeDispatch(outbox: Outbox, taskId: string, dispatch: TaskChange['dispatch']): void {
  if (dispatch === 'clear') outbox.alongside(guard => dispatchDelete(taskId, guard))
  else if (dispatch) outbox.alongside(guard => dispatchWrite(dispatch, guard))
}

/**
 * Defers the dispatch of a change if the project is paused, and then locks the pause state until the transaction ends. A
 * project that is paused after its task was locked is found by the claim of the dispatch.
 */
export async function deferIfPaused(tx: Tx, change: TaskChange): Promise<TaskChange> {
  if (!isQueued(change.dispatch) || change.before.project_paused === false) return change
  const project = await lockPauseState(tx, change.after.project_id)
  return project?.paused_at ? withDeferredDispatch(change) : change
}

/** Writes a change with its effects. Requires the row lock. Returns the changed task. */
export async function writeChange(tx: Tx, services: Services, requested: TaskChange): Promise<TaskRow> {
  const change = await deferIfPaused(tx, requested)
  const { before, after, history, dispatch, cancels } = change
  tx.alongside(guard => taskUpdate(before, after, guard))
  if (history.length > 0) tx.alongside(guard => historyInsert(history, guard))
  writeDispatch(tx, after.id, dispatch)
  if (cancels !== null) await cancelAbandonedRun(tx, services, cancels)
  emitChange(tx, change)
  return after
}

/** Cancels a run that a task no longer waits for, unless it has settled or was deleted. */
export async function cancelAbandonedRun(tx: Tx, services: Services, runId: string): Promise<void> {
  try {
    await tx.nested(inner => cancelRun(inner, services, runId))
  } catch (error) {
    const ignored = ['ORCHESTRATION_RUN_NOT_CANCELLABLE', 'ORCHESTRATION_RUN_NOT_FOUND']
    if (!(error instanceof AppError && ignored.includes(error.code))) throw error
  }
}
