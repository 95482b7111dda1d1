import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { handler } from '#core/work/handler.ts'
import type { Waiter } from '#core/work/waiters.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type ApprovalEffect, type ApprovalRow, approvalKind } from '#execution/approvals/model.ts'
import { fileTaskApproval } from '#execution/approvals/task-approval.ts'
import { pinnedMachine } from '../definition/pinned-workflow.ts'
import { transitionRow } from './history.ts'
import { type TaskRow, type TransitionGate, taskKind } from './model.ts'
import { settleQueue } from './queue.ts'
import { decideMove, plainChange, restartDispatch, type TaskChange, withUpdatedAt } from './task-change.ts'
import { writeChange } from './write.ts'

/** Files the approval of a transition and returns the task with the transition pending. Requires the row lock. */
export async function withPendingTransition(
  tx: Tx,
  services: Services,
  task: TaskRow,
  transition: string,
  gate: TransitionGate,
  gate_context: string | null,
): Promise<TaskRow> {
  const approval = await fileTaskApproval(tx, services, {
    project_id: task.project_id,
    task_id: task.id,
    task_transition: transition,
    authority: gate.authority,
    expires_in: services.config.TASK_APPROVAL_TTL_SECONDS,
    title: task.title,
  })
  return withUpdatedAt(task, services.clock.now().toISOString(), {
    pending_transition: transition,
    pending_approval_id: approval.id,
    gate,
    gate_context,
  })
}

/** Applies the pending transition of a task if it was approved, or clears it if it was rejected or expired. */
export const settlePendingTransition = (services: Services, { task_id }: { task_id: string }): Promise<void> =>
  services.write(tx => settleWithin(tx, services, task_id))

async function settleWithin(tx: Tx, services: Services, taskId: string): Promise<void> {
  const task = await taskKind.find(tx, taskId, true)
  const change = task && (await decidePendingTransition(tx, services, task))
  if (change) await writeChange(tx, services, change)
}

/** Returns the change that follows from the approval of a transition, or null while there is none. Requires the row lock. */
async function decidePendingTransition(tx: Tx, services: Services, task: TaskRow): Promise<TaskChange | null> {
  const { pending_approval_id, pending_transition, gate } = task
  if (pending_approval_id === null || pending_transition === null || gate === null) return null
  const machine = await pinnedMachine(services, tx, task)
  const approval = await approvalKind.find(tx, pending_approval_id)
  if (!machine || approval?.status === 'pending') return null
  const nowText = services.clock.now().toISOString()
  const by = { kind: 'approval' as const, id: approval?.resolved_by ?? null, cause: null }
  const state = machine.state(task.state)
  if (approval?.status === 'approved' && gate.restarts && state?.on_enter) {
    const cleared = { ...task, pending_transition: null, pending_approval_id: null, gate: null, gate_context: null }
    return { ...restartDispatch(services, cleared, state, { authority: gate.authority, depth: 0 }), before: task }
  }
  if (approval?.status === 'approved') {
    try {
      const change = await decideMove(
        services,
        machine,
        task,
        {
          transition: pending_transition,
          by,
          authority: gate.authority,
          automated: false,
          approved: true,
          ...(gate.context ? { context: task.gate_context } : {}),
        },
        services.config.TASK_AUTOMATION_CHAIN_LIMIT,
        nowText,
      )
      return change === 'gated' ? null : change
    } catch (error) {
      if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY') throw error
      const extra = { transition: pending_transition, error_code: error.code }
      return clearPending(task, nowText, { events: [{ verb: 'approval_failed', extra }] })
    }
  }
  const reason = approval?.resolution_reason
  const outcome = approval?.status === 'rejected' ? 'rejected' : 'expired'
  const note = `Transition ${pending_transition} ${outcome}${reason ? `: ${reason}` : ''}`.slice(0, 10_000)
  const row = transitionRow(by, {
    task_id: task.id,
    from_state: task.state,
    to_state: task.state,
    transition: null,
    note,
    seq: task.revision + 1,
    created_at: nowText,
  })
  return clearPending(task, nowText, { history: [row] })
}

const clearPending = (task: TaskRow, nowText: string, more: Partial<TaskChange>): TaskChange =>
  plainChange(
    task,
    withUpdatedAt(task, nowText, {
      pending_transition: null,
      pending_approval_id: null,
      gate: null,
      gate_context: null,
    }),
    more,
  )

export const settleHandler = handler(
  settleQueue,
  { concurrency: config => config.TASK_WORKER_CONCURRENCY },
  (message, { services }) => settlePendingTransition(services, message),
)

/** Moves the task in the transaction of the decision. Tasks are locked before their approvals. */
export const taskDecisions: ApprovalEffect = {
  applies: ({ task_id }) => task_id !== null,
  lock: (tx, { task_id }) => taskKind.find(tx, task_id as string, true),
  apply: (tx, services, { task_id }) => settleWithin(tx, services, task_id as string),
}

/** Wakes the task whose approval expired. */
export const taskApprovals: Waiter<ApprovalRow> = {
  async settled(tx, { task_id, project_id }) {
    if (task_id !== null) tx.send(settleQueue, { task_id, project_id })
  },
}
