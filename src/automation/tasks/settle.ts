import { fileExceptionInTx } from '../../control/exceptions/file-exception.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import type { Machine } from '../workflows/definition.ts'
import { pinnedMachine } from '../workflows/pinned-workflow.ts'
import { type AutomationOutcome, type DispatchRoute, decideOutcome } from './automation.ts'
import { type TaskRow, taskKind } from './model.ts'
import { payloadProblems } from './payload.ts'
import { type SettleMessage, settleQueue } from './queue.ts'
import { findDispatch, type TaskWithDispatch } from './store.ts'
import { startedTargets } from './targets.ts'
import { settlePendingTransition, withPendingTransition } from './transition-approval.ts'
import { writeChange, writeChangeInOneStatement } from './write.ts'

// Each dispatch settles exactly once, in the transaction that deletes or replaces its row.

const routingContext = (services: Services, machine: Machine, { project_id }: TaskRow, inTransaction: boolean) => ({
  machine,
  limit: services.config.TASK_AUTOMATION_CHAIN_LIMIT,
  nowText: services.clock.now().toISOString(),
  problems: (payload: Record<string, unknown>) =>
    payloadProblems(services, project_id, machine, payload, inTransaction),
})

/** Files an exception for a failed task that no transition handles. */
function reportUnattended(outbox: Outbox, { change, unattended }: DispatchRoute): void {
  const { id, state, project_id, title, automation_error, workflow_id } = change.after
  if (!unattended) return
  fileExceptionInTx(outbox, {
    project_id,
    kind: 'run_failed',
    title: `Dispatch of task ${title} failed in state ${state}`,
    detail: { task_id: id, workflow_id, state, code: automation_error?.code },
    dedup_key: `task:${id}:${state}`,
  })
}

async function writeRoute(tx: Tx, services: Services, route: DispatchRoute): Promise<TaskRow> {
  const { change, gate } = route
  reportUnattended(tx, route)
  if (!gate) return writeChange(tx, services, change)
  const { revision } = change.before
  const { authority } = change.after
  const requester = { authority, context: false }
  const after = await withPendingTransition(tx, services, { ...change.after, revision }, gate, requester, null)
  return writeChange(tx, services, { ...change, after })
}

/**
 * Settles a claimed tool call, in one statement if the task is unchanged since the claim. Returns the changed task, or
 * null if the claim was lost.
 * @param record adds further writes to the outbox
 */
export async function settleCall(
  services: Services,
  { task, dispatch }: TaskWithDispatch,
  outcome: AutomationOutcome,
  record: (outbox: Outbox) => void,
): Promise<TaskRow | null> {
  const machine = await pinnedMachine(services, services.pool, task)
  if (!machine) return null
  const claim = { id: dispatch.dispatch_id, claims: dispatch.claims }
  const route = await decideOutcome(routingContext(services, machine, task, false), task, dispatch.attempt, outcome)
  if (!route.gate) {
    const recordAll = (outbox: Outbox) => {
      record(outbox)
      reportUnattended(outbox, route)
    }
    if (await writeChangeInOneStatement(services, route.change, recordAll, claim)) return route.change.after
  }
  return services.write(async tx => {
    const locked = await findDispatch(tx, task.id, claim.id, true)
    if (locked?.dispatch.dispatch_state !== 'running' || locked.dispatch.claims !== claim.claims) return null
    const currentRoute = await decideOutcome(
      routingContext(services, machine, locked.task, true),
      locked.task,
      locked.dispatch.attempt,
      outcome,
    )
    record(tx)
    return writeRoute(tx, services, currentRoute)
  })
}

/** Fails a dispatch that is queued or whose lease has expired. Returns null if a worker holds a valid lease. */
export const settleFailure = (
  services: Services,
  { task_id, dispatch_id }: { task_id: string; dispatch_id: string },
  outcome: Extract<AutomationOutcome, { ok: false }>,
): Promise<TaskRow | null> =>
  services.write(async tx => {
    const locked = await findDispatch(tx, task_id, dispatch_id, true)
    if (!locked?.dispatch.free || !['queued', 'running'].includes(locked.dispatch.dispatch_state)) return null
    const { task, dispatch } = locked
    const machine = await pinnedMachine(services, tx, task)
    if (!machine) return null
    return writeRoute(
      tx,
      services,
      await decideOutcome(routingContext(services, machine, task, true), task, dispatch.attempt, outcome),
    )
  })

/** Applies the outcome of the work or the approval that a task waits for, if it has settled. */
export const settleTask = (services: Services, { task_id }: SettleMessage): Promise<unknown> =>
  services.write(async tx => {
    const settled = await findOutcome(tx, task_id)
    const locked = await findDispatch(tx, task_id, null, true)
    const task = locked?.task ?? (await taskKind.find(tx, task_id, true))
    const machine = task && (await pinnedMachine(services, tx, task))
    if (!task || !machine) return
    if (task.pending_approval_id !== null) {
      // The pending transition settles first: it may leave the state.
      const after = await settlePendingTransition(tx, services, machine, task)
      if (after) {
        // One change of the row per statement: another message settles the dispatch.
        if (locked?.dispatch.dispatch_state === 'started' && after.entry_seq === task.entry_seq)
          tx.send(settleQueue, { task_id, project_id: task.project_id })
        return
      }
    }
    if (locked?.dispatch.dispatch_state !== 'started' || locked.dispatch.kind === 'tool') return
    // A dispatch that has replaced it since has a separate message.
    if (settled?.dispatch_id !== locked.dispatch.dispatch_id) return
    await writeRoute(
      tx,
      services,
      await decideOutcome(
        routingContext(services, machine, task, true),
        task,
        locked.dispatch.attempt,
        settled.outcome,
      ),
    )
  })

/**
 * Returns the outcome of a task's dispatched work, or null if it is active. Must run before the task is locked: erasure
 * locks the work first and then the task.
 */
async function findOutcome(
  tx: Tx,
  taskId: string,
): Promise<{ dispatch_id: string; outcome: AutomationOutcome } | null> {
  const found = await findDispatch(tx, taskId, null)
  if (found?.dispatch.dispatch_state !== 'started' || found.dispatch.kind === 'tool') return null
  const { dispatch_id, kind, result_id } = found.dispatch
  const outcome = await startedTargets[kind].outcome(tx, result_id as string)
  return outcome && { dispatch_id, outcome }
}
