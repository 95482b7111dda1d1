import { AppError } from '../../core/api/errors.ts'
import { sql } from '../../core/db/sql.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { lockPauseState } from '../../identity/projects/store.ts'
import { cancelRun } from '../runs/commands/command.ts'
import { type TaskRow, taskKind } from './model.ts'
import { taskDispatchQueue } from './queue.ts'
import { dispatchDelete, dispatchWrite, historyInsert, taskUpdate } from './store.ts'
import type { NewDispatch, TaskChange } from './task-change.ts'

/** Makes a dispatch of a step wait for the end of a pause. */
function heldBack(step: TaskChange): TaskChange {
  const { dispatch, after } = step
  if (dispatch === null || dispatch === 'clear') return step
  return {
    ...step,
    dispatch: { ...dispatch, state: 'held' },
    after: { ...after, automation_status: 'paused', active_dispatch: null },
  }
}

const isQueued = (dispatch: TaskChange['dispatch']): dispatch is NewDispatch =>
  dispatch !== null && dispatch !== 'clear' && dispatch.state === 'queued'

/** The events of a step, and the message of its dispatch. */
export function emitChange(outgoing: Outbox, { after, dispatch, events }: TaskChange): void {
  for (const { verb, extra, row = after } of events) outgoing.emit(taskKind, verb, row, extra ? { extra } : {})
  if (!isQueued(dispatch)) return
  const { task_id, id: dispatch_id, project_id, delay_ms } = dispatch
  const message = { task_id, dispatch_id, project_id }
  outgoing.send(taskDispatchQueue, message, delay_ms > 0 ? { startAfter: new Date(Date.now() + delay_ms) } : {})
}

/** Writes the rows of a new dispatch, or takes the old one away, with the last statement of a change. */
export function writeDispatch(outgoing: Outbox, taskId: string, dispatch: TaskChange['dispatch']): void {
  if (dispatch === 'clear') outgoing.alongside(guard => dispatchDelete(taskId, guard))
  else if (dispatch) outgoing.alongside(guard => dispatchWrite(dispatch, guard))
}

/** Whether the project is paused, where a step starts work: the project is kept as it is until the transaction ends. */
export async function deferIfPaused(tx: Tx, step: TaskChange): Promise<TaskChange> {
  if (!isQueued(step.dispatch)) return step
  const project = await lockPauseState(tx, step.after.project_id)
  return project?.paused_at ? heldBack(step) : step
}

/** Writes a step in a transaction that holds the task's row. Returns the task as it is then. */
export async function writeChange(tx: Tx, services: Services, given: TaskChange): Promise<TaskRow> {
  const step = await deferIfPaused(tx, given)
  const { before, after, history, dispatch, cancels } = step
  tx.alongside(guard => taskUpdate(before, after, guard))
  if (history.length > 0) tx.alongside(guard => historyInsert(history, guard))
  writeDispatch(tx, after.id, dispatch)
  if (cancels !== null) await cancelAbandonedRun(tx, services, cancels)
  emitChange(tx, step)
  return after
}

/** Ends the run that a task had waited for, unless it has ended or is gone. */
export async function cancelAbandonedRun(tx: Tx, services: Services, runId: string): Promise<void> {
  try {
    await tx.nested(inner => cancelRun(inner, services, runId))
  } catch (error) {
    const over = ['ORCHESTRATION_RUN_NOT_CANCELLABLE', 'ORCHESTRATION_RUN_NOT_FOUND']
    if (!(error instanceof AppError && over.includes(error.code))) throw error
  }
}

/**
 * Writes a step in one statement, while the task's row is as it was when the step was decided, and its project is not
 * paused where the step starts work. Returns whether it was written.
 * @param holding a condition on the dispatch that is under way
 */
export async function writeChangeInOneStatement(
  services: Services,
  step: TaskChange,
  note: (outgoing: Outbox) => void,
  holding?: { id: string; claims: number },
): Promise<boolean> {
  const { before, after, history, dispatch } = step
  const { held } = await services.writeOne(outgoing => {
    emitChange(outgoing, step)
    note(outgoing)
    const runnable = isQueued(dispatch) ? sql.fragment`exists (select from runnable)` : sql.fragment`true`
    const mine = holding ? sql.fragment`exists (select from mine)` : sql.fragment`true`
    const guard = sql.fragment`exists (select from moved)`
    const ctes = [
      ...(isQueued(dispatch)
        ? [
            sql.fragment`runnable as (
              select id from projects where id = ${after.project_id} and paused_at is null for share)`,
          ]
        : []),
      ...(holding
        ? [
            sql.fragment`mine as (
              select task_id from task_dispatches
              where task_id = ${after.id} and id = ${holding.id} and claims = ${holding.claims} and state = 'running')`,
          ]
        : []),
      sql.fragment`moved as (${taskUpdate(before, after, sql.fragment`${runnable} and ${mine}`)})`,
    ]
    if (history.length > 0) ctes.push(sql.fragment`history as (${historyInsert(history, guard)})`)
    if (dispatch === 'clear') ctes.push(sql.fragment`cleared as (${dispatchDelete(after.id, guard)})`)
    else if (dispatch) ctes.push(sql.fragment`dispatched as (${dispatchWrite(dispatch, guard)})`)
    return { ctes, guard, columns: sql.fragment`1 as one` }
  })
  return held
}
