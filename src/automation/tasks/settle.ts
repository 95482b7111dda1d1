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

/** Ends dispatches, with what follows: each once, in the transaction in which its row goes. */

const deciding = (services: Services, machine: Machine, { project_id }: TaskRow, inTransaction: boolean) => ({
  machine,
  limit: services.config.TASK_AUTOMATION_CHAIN_LIMIT,
  nowText: services.clock.now().toISOString(),
  problems: (payload: Record<string, unknown>) =>
    payloadProblems(services, project_id, machine, payload, inTransaction),
})

/** Tells people of a task that has failed and that nothing moves on. */
function noteUnattended(outgoing: Outbox, { step, unattended }: DispatchRoute): void {
  const { id, state, project_id, title, automation_error, workflow_id } = step.after
  if (!unattended) return
  fileExceptionInTx(outgoing, {
    project_id,
    kind: 'run_failed',
    title: `The dispatch of the task ${title} in the state ${state} failed`,
    detail: { task_id: id, workflow_id, state, code: automation_error?.code },
    dedup_key: `task:${id}:${state}`,
  })
}

async function write(tx: Tx, services: Services, routed: DispatchRoute): Promise<TaskRow> {
  const { step, gate } = routed
  noteUnattended(tx, routed)
  if (!gate) return writeChange(tx, services, step)
  const { revision } = step.before
  const { authority } = step.after
  const asked = { authority, context: false }
  const after = await withPendingTransition(tx, services, { ...step.after, revision }, gate, asked, null)
  return writeChange(tx, services, { ...step, after })
}

/**
 * Ends the call of a tool that this worker claimed, in one statement where nothing has changed the task meanwhile. Returns
 * the task as it is then; null when the call is no longer this worker's.
 * @param note what else is written with it
 */
export async function settleCall(
  services: Services,
  { task, dispatch }: TaskWithDispatch,
  outcome: AutomationOutcome,
  note: (outgoing: Outbox) => void,
): Promise<TaskRow | null> {
  const machine = await pinnedMachine(services, services.pool, task)
  if (!machine) return null
  const claim = { id: dispatch.dispatch_id, claims: dispatch.claims }
  const routed = await decideOutcome(deciding(services, machine, task, false), task, dispatch.attempt, outcome)
  if (!routed.gate) {
    const noted = (outgoing: Outbox) => {
      note(outgoing)
      noteUnattended(outgoing, routed)
    }
    if (await writeChangeInOneStatement(services, routed.step, noted, claim)) return routed.step.after
  }
  return services.write(async tx => {
    const held = await findDispatch(tx, task.id, claim.id, true)
    if (held?.dispatch.dispatch_state !== 'running' || held.dispatch.claims !== claim.claims) return null
    const again = await decideOutcome(
      deciding(services, machine, held.task, true),
      held.task,
      held.dispatch.attempt,
      outcome,
    )
    note(tx)
    return write(tx, services, again)
  })
}

/** Ends a dispatch that has not begun, or that no live worker holds, with a failure. */
export const settleFailure = (
  services: Services,
  { task_id, dispatch_id }: { task_id: string; dispatch_id: string },
  outcome: Extract<AutomationOutcome, { ok: false }>,
): Promise<TaskRow | null> =>
  services.write(async tx => {
    const held = await findDispatch(tx, task_id, dispatch_id, true)
    if (!held?.dispatch.free || !['queued', 'running'].includes(held.dispatch.dispatch_state)) return null
    const { task, dispatch } = held
    const machine = await pinnedMachine(services, tx, task)
    if (!machine) return null
    return write(
      tx,
      services,
      await decideOutcome(deciding(services, machine, task, true), task, dispatch.attempt, outcome),
    )
  })

/** Looks what has settled of what a task waits for: what it started, or its approval. */
export const settleTask = (services: Services, { task_id }: SettleMessage): Promise<unknown> =>
  services.write(async tx => {
    const settled = await settledFor(tx, task_id)
    const held = await findDispatch(tx, task_id, null, true)
    const task = held?.task ?? (await taskKind.find(tx, task_id, true))
    const machine = task && (await pinnedMachine(services, tx, task))
    if (!task || !machine) return
    if (task.pending_approval_id !== null) {
      // What becomes of the gate goes first: it may lead out of the state.
      const after = await settlePendingTransition(tx, services, machine, task)
      if (after) {
        // One change of a row in a statement: what it waits for beside the gate is looked at by the next message.
        if (held?.dispatch.dispatch_state === 'started' && after.entry_seq === task.entry_seq)
          tx.send(settleQueue, { task_id, project_id: task.project_id })
        return
      }
    }
    if (held?.dispatch.dispatch_state !== 'started' || held.dispatch.kind === 'tool') return
    // One that has taken its place since is looked at by a message of its own.
    if (settled?.dispatch_id !== held.dispatch.dispatch_id) return
    await write(
      tx,
      services,
      await decideOutcome(deciding(services, machine, task, true), task, held.dispatch.attempt, settled.outcome),
    )
  })

/**
 * What the dispatch of a task has come to; null where it has not ended. The task is not locked yet: whoever erases what it came
 * to holds that, and then takes the task.
 */
async function settledFor(tx: Tx, taskId: string): Promise<{ dispatch_id: string; outcome: AutomationOutcome } | null> {
  const found = await findDispatch(tx, taskId, null)
  if (found?.dispatch.dispatch_state !== 'started' || found.dispatch.kind === 'tool') return null
  const { dispatch_id, kind, result_id } = found.dispatch
  const outcome = await startedTargets[kind].outcome(tx, result_id as string)
  return outcome && { dispatch_id, outcome }
}
