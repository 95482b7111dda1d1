import { firingKind, isFiringTerminal } from '#automation/triggers/model.ts'
import { settleTriggerFiring } from '#automation/triggers/settle.ts'
import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { withdrawApprovals } from '#execution/approvals/node-approval.ts'
import { cancelTurnIfActive } from '#execution/generations/request/cancel-turn.ts'
import type { WorkflowRow } from '../definition/model.ts'
import type { TaskRow } from './model.ts'
import { countOpen } from './store.ts'
import { cancelAbandonedRun } from './write.ts'

/** Cancels the active work and the pending approval of a task that is about to be deleted. Requires the row lock. */
export async function cancelTaskWork(tx: Tx, services: Services, task: TaskRow): Promise<void> {
  const { active_dispatch, pending_approval_id } = task
  if (active_dispatch?.status === 'running' && active_dispatch.id !== null) {
    const { kind, id } = active_dispatch
    if (kind === 'orchestration_run') await cancelAbandonedRun(tx, services, id)
    if (kind === 'generation') await cancelTurnIfActive(tx, services, id)
    if (kind === 'trigger_firing') await cancelFiring(tx, services, id)
  }
  if (pending_approval_id !== null) await withdrawApprovals(tx, [pending_approval_id])
}

/** Settles a queued firing, or cancels the run or turn that it started. */
async function cancelFiring(tx: Tx, services: Services, id: string): Promise<void> {
  const firing = await firingKind.find(tx, id, true)
  if (!firing || isFiringTerminal(firing)) return
  const { result_id, target_type } = firing
  if (firing.state === 'queued')
    await settleTriggerFiring(tx, id, {
      error: new AppError('RESOURCE_NOT_FOUND', { message: 'The task was deleted' }).recorded(),
    })
  else if (result_id !== null && target_type === 'orchestration') await cancelAbandonedRun(tx, services, result_id)
  else if (result_id !== null && target_type === 'agent') await cancelTurnIfActive(tx, services, result_id)
}

/** Refuses to delete a workflow with open tasks. @throws WORKFLOW_HAS_OPEN_TASKS */
export async function refuseOpenTasks(tx: Tx, { id }: WorkflowRow): Promise<void> {
  const open_tasks = await countOpen(tx, id)
  if (open_tasks > 0) raise('WORKFLOW_HAS_OPEN_TASKS', { meta: { open_tasks } })
}
