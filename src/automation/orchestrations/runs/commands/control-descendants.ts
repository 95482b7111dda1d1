import { injectFault } from '#core/base/fault-injection.ts'
import type { JobContext } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type DescendantsMessage, descendantsQueue, runQueue } from '../queue.ts'
import type { RunRef } from '../store.ts'
import { cancelRunPage, MAX_RUNS_PER_TX, PAGE_RUNS } from './cancel-descendants.ts'
import {
  hasMoreLiveRuns,
  type ListedRun,
  listNestedRuns,
  pauseRuns,
  pauseTrees,
  runsStartedBy,
  withoutJit,
} from './tree-store.ts'

/** Pauses the descendants of runs; large trees are paused by workers after the transaction. */
export async function pauseDescendants(
  tx: Tx,
  project_id: string,
  runIds: readonly string[],
  reason: string | null,
): Promise<void> {
  const roots = runsStartedBy(runIds)
  if (await hasMoreLiveRuns(tx, roots, MAX_RUNS_PER_TX))
    for (const run_id of runIds)
      tx.send(descendantsQueue, { run_id, project_id, execution_id: null, pause: { reason }, after: null })
  else wake(tx, await pauseTrees(tx, roots, reason))
}

function wake(tx: Tx, runs: readonly RunRef[]): void {
  for (const { id: run_id, project_id } of runs) tx.send(runQueue, { run_id, project_id })
}

/** Cancels or pauses a page of the nested runs of a run, and their descendants. */
export const controlDescendants = (message: DescendantsMessage, { services, complete }: JobContext) =>
  services.write(async tx => {
    await withoutJit(tx)
    const { project_id, pause } = message
    const limit = pause ? MAX_RUNS_PER_TX : PAGE_RUNS
    const page = await listNestedRuns(tx, message, limit)
    const done = pause
      ? await pauseRunPage(tx, project_id, page, pause.reason)
      : await cancelRunPage(tx, services, project_id, page)
    if (done === limit || done < page.length) {
      const { execution_id, index } = page[done - 1]
      tx.send(descendantsQueue, { ...message, after: { execution_id, index } })
    }
    complete(tx)
    await injectFault(services, 'run_followed')
  })

async function pauseRunPage(
  tx: Tx,
  projectId: string,
  page: readonly ListedRun[],
  reason: string | null,
): Promise<number> {
  const ids = page.map(({ id }) => id)
  wake(tx, await pauseRuns(tx, ids, reason))
  const parents = page.flatMap(({ id, below }) => (below > 0 ? id : []))
  if (parents.length > 0) await pauseDescendants(tx, projectId, parents, reason)
  return page.length
}
