import { AppError, raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { withdrawApprovals } from '../../execution/approvals/node.ts'
import { cancelTurnLeft } from '../../execution/generations/abort.ts'
import { firingKind, hasEnded } from '../triggers/model.ts'
import { settleFiring } from '../triggers/settle.ts'
import type { WorkflowRow } from '../workflows/model.ts'
import type { TaskRow } from './model.ts'
import { countOpen } from './store.ts'
import { cancelLeft } from './write.ts'

/** Ends what a task has under way, behind its row's lock, before it is deleted. */
export async function removeTask(tx: Tx, services: Services, task: TaskRow): Promise<void> {
  const { active_dispatch, pending_approval_id } = task
  if (active_dispatch?.status === 'running' && active_dispatch.id !== null) {
    const { kind, id } = active_dispatch
    if (kind === 'orchestration_run') await cancelLeft(tx, services, id)
    if (kind === 'generation') await cancelTurnLeft(tx, services, id)
    if (kind === 'trigger_firing') await cancelFiring(tx, services, id)
  }
  if (pending_approval_id !== null) await withdrawApprovals(tx, [pending_approval_id])
}

/** Ends a firing that waits for a worker, or the run or turn that it started. */
async function cancelFiring(tx: Tx, services: Services, id: string): Promise<void> {
  const firing = await firingKind.find(tx, id, true)
  if (!firing || hasEnded(firing)) return
  const { result_id, target_type } = firing
  if (firing.state === 'queued')
    await settleFiring(tx, id, {
      error: new AppError('RESOURCE_NOT_FOUND', { message: 'The task was deleted' }).recorded(),
    })
  else if (result_id !== null && target_type === 'orchestration') await cancelLeft(tx, services, result_id)
  else if (result_id !== null && target_type === 'agent') await cancelTurnLeft(tx, services, result_id)
}

/** Keeps a workflow with open tasks. Raises WORKFLOW_HAS_OPEN_TASKS. */
export async function keepOpen(tx: Tx, { id }: WorkflowRow): Promise<void> {
  const open_tasks = await countOpen(tx, id)
  if (open_tasks > 0) raise('WORKFLOW_HAS_OPEN_TASKS', { meta: { open_tasks } })
}
