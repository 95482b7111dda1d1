import type { OrchestrationRow } from '#automation/orchestrations/definition/model.ts'
import { deleteMarked, markDeleted } from '#automation/orchestrations/definition/store.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { type JobContext, RequeueError } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type RemovalMessage, removalQueue } from '../queue.ts'
import { cancelOrchestrationRuns, cancelRunPage, MAX_RUNS_PER_TX, PAGE_RUNS } from './cancel-descendants.ts'
import {
  deleteRunsOf,
  hasMoreLiveRuns,
  hasMoreRuns,
  hasRunsToCancel,
  listLiveRunsOf,
  runsOfOrchestration,
  withoutJit,
} from './tree-store.ts'

/** Limit of runs that a request deletes with their orchestration: 30 µs each, plus their descendants. */
const MAX_RUNS_PER_REQUEST = 1000
/** Runs deleted in one transaction. */
const DELETE_BATCH = 100
/**
 * Ends the runs of a deleted orchestration. With few runs they are deleted immediately; otherwise the orchestration is
 * marked as deleted and workers cancel and delete its runs first.
 */
export async function removeRunsOfOrchestration(
  tx: Tx,
  { id, project_id }: Pick<OrchestrationRow, 'id' | 'project_id'>,
  services: Services,
): Promise<void> {
  const isLarge =
    (await hasMoreRuns(tx, id, MAX_RUNS_PER_REQUEST)) ||
    (await hasMoreLiveRuns(tx, runsOfOrchestration(id), MAX_RUNS_PER_TX))
  if (!isLarge) return cancelOrchestrationRuns(tx, services, { id, project_id })
  await markDeleted(tx, id)
  tx.send(removalQueue, { orchestration_id: id, project_id })
}

/** Cancels and deletes the runs of an orchestration marked as deleted, page by page, then the orchestration. */
export async function removeRuns(removal: RemovalMessage, { services, stopping, complete }: JobContext): Promise<void> {
  const { orchestration_id, project_id } = removal
  const { pool } = services
  const isCancelling = await services.write(async tx => {
    await withoutJit(tx)
    const page = await listLiveRunsOf(tx, removal, PAGE_RUNS)
    if (page.length === 0) return false
    await cancelRunPage(tx, services, project_id, page)
    tx.send(removalQueue, removal)
    complete(tx)
    await injectFault(services, 'run_followed')
    return true
  })
  // Descendants must be cancelled first; the sweep sends this message again.
  if (isCancelling || (await hasRunsToCancel(pool, project_id))) return
  while ((await deleteRunsOf(pool, orchestration_id, DELETE_BATCH)) === DELETE_BATCH)
    if (stopping.aborted) throw new RequeueError('the worker is shutting down')
  await deleteMarked(pool, orchestration_id)
}
