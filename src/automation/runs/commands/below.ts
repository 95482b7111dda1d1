import type { Tx } from '../../../core/db/writer.ts'
import type { JobContext } from '../../../core/jobs/handler.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import { type BelowMessage, belowQueue, runQueue } from '../queue.ts'
import type { NamedRun } from '../store.ts'
import { AT_ONCE, stopPage } from './cancel-descendants.ts'
import { isLarger, type ListedRun, nextBelow, pauseRuns, pauseTrees, rootsBelow } from './tree-store.ts'

/** Pauses what some runs have started, with all below; of large trees workers do, behind the transaction. */
export async function pauseStarted(
  tx: Tx,
  project_id: string,
  runIds: readonly string[],
  reason: string | null,
): Promise<void> {
  const roots = rootsBelow(runIds)
  if (await isLarger(tx, roots, AT_ONCE))
    for (const run_id of runIds)
      tx.send(belowQueue, { run_id, project_id, execution_id: null, pause: { reason }, after: null })
  else wake(tx, await pauseTrees(tx, roots, reason))
}

function wake(tx: Tx, runs: readonly NamedRun[]): void {
  for (const { id: run_id, project_id } of runs) tx.send(runQueue, { run_id, project_id })
}

/** Follows a run that was stopped or paused with a page of the runs that it started, and with what those started. */
export const followAbove = (message: BelowMessage, { services, complete }: JobContext) =>
  services.write(async tx => {
    const { project_id, pause } = message
    const page = await nextBelow(tx, message, AT_ONCE)
    if (pause) await pausePage(tx, project_id, page, pause.reason)
    else await stopPage(tx, services, project_id, page)
    if (page.length === AT_ONCE) {
      const { execution_id, index } = page[AT_ONCE - 1]
      tx.send(belowQueue, { ...message, after: { execution_id, index } })
    }
    complete(tx)
    await injectFault(services, 'run_followed')
  })

async function pausePage(tx: Tx, projectId: string, page: readonly ListedRun[], reason: string | null): Promise<void> {
  const ids = page.map(({ id }) => id)
  wake(tx, await pauseRuns(tx, ids, reason))
  const parents = page.flatMap(({ id, is_parent }) => (is_parent ? id : []))
  if (parents.length > 0) await pauseStarted(tx, projectId, parents, reason)
}
