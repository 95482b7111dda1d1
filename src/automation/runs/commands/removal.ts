import { type JobContext, RequeueError } from '../../../core/jobs/handler.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import type { OrchestrationDeleteHook } from '../../orchestrations/delete-hooks.ts'
import { deleteMarked, markDeleted } from '../../orchestrations/store.ts'
import { type RemovalMessage, removalQueue } from '../queue.ts'
import { AT_ONCE, cancelOrchestrationRuns, stopPage } from './cancel-descendants.ts'
import { deleteRunsOf, hasMoreRuns, hasStopping, isLarger, nextRunsOf, rootsOf } from './tree-store.ts'

/** Runs that a request deletes with their orchestration: 30 µs each, with what is below them more. */
const MOST = 1000
/** Runs that are deleted in one transaction. */
const DELETED = 100
/**
 * An orchestration that is deleted takes its runs along. With few of them it goes at once; else it becomes invisible, and
 * workers stop and delete its runs before they delete it.
 */
export const endRuns: OrchestrationDeleteHook = async (tx, services, { id, project_id }) => {
  const isLarge = (await hasMoreRuns(tx, id, MOST)) || (await isLarger(tx, rootsOf(id), AT_ONCE))
  if (!isLarge) return cancelOrchestrationRuns(tx, services, { id, project_id })
  await markDeleted(tx, id)
  tx.send(removalQueue, { orchestration_id: id, project_id })
}

/** Stops and deletes runs of an orchestration that is marked as deleted, page by page, and then deletes it. */
export async function removeRuns(removal: RemovalMessage, { services, stopping, complete }: JobContext): Promise<void> {
  const { orchestration_id, project_id } = removal
  const { pool } = services
  const stops = await services.write(async tx => {
    const page = await nextRunsOf(tx, removal, AT_ONCE)
    if (page.length === 0) return false
    await stopPage(tx, services, project_id, page)
    tx.send(removalQueue, removal)
    complete(tx)
    await injectFault(services, 'run_followed')
    return true
  })
  // What is below them has to be stopped as well: a sweep comes again.
  if (stops || (await hasStopping(pool, project_id))) return
  while ((await deleteRunsOf(pool, orchestration_id, DELETED)) === DELETED)
    if (stopping.aborted) throw new RequeueError('the worker stops')
  await deleteMarked(pool, orchestration_id)
}
