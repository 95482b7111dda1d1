import { uncaused } from '../../core/db/causation.ts'
import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { withdrawApprovals } from '../../execution/approvals/node.ts'
import { cancelTurnLeft } from '../../execution/generations/abort.ts'
import type { OrchestrationRow } from '../orchestrations/model.ts'
import { cancelExecutions, type ExecutionRow } from './attempt-store.ts'
import { type RunRow, runKind } from './model.ts'
import { tellOfRun } from './news.ts'
import { runQueue, runTold } from './queue.ts'
import { shownRun } from './show.ts'
import { cancelBelow, cancelRunsOf, longestQueuedOf } from './store.ts'
import { runWatchers } from './watchers.ts'

/**
 * Ends what a run has under way: turns that it waits for, approvals that nobody needs any more, and the runs below it with
 * all of theirs.
 * @param rows attempts of the run itself
 * @param executionId only what this attempt started
 */
export async function stopBelow(
  tx: Tx,
  services: Services,
  run: Pick<RunRow, 'id'>,
  rows: readonly Pick<ExecutionRow, 'generation_id' | 'approval_id'>[],
  executionId: string | null,
): Promise<void> {
  const below = await cancelBelow(tx, [run.id], executionId)
  await endWhatWaits(tx, services, rows, await noteCancelled(tx, below))
}

/** The same for the live runs of an orchestration that is deleted: runs of others that wait for one of them are told. */
export async function stopRunsOf(tx: Tx, services: Services, orchestration: OrchestrationRow): Promise<void> {
  const first = await cancelRunsOf(tx, orchestration.id)
  if (first.length === 0) return
  await endWhatWaits(tx, services, [], await noteCancelled(tx, first))
  const ended = new Set(first.map(({ id }) => id))
  for (const { parent_id, project_id } of first)
    if (parent_id !== null && !ended.has(parent_id)) tx.send(runTold, { run_id: parent_id, project_id })
  for (const { id, project_id } of await longestQueuedOf(tx, orchestration.project_id, first.length))
    uncaused(() => tx.send(runQueue, { run_id: id, project_id }))
}

type Waits = Pick<ExecutionRow, 'generation_id' | 'approval_id'>

/** What follows from runs that were cancelled, and from those that they had started meanwhile. Returns their attempts. */
async function noteCancelled(tx: Tx, first: readonly RunRow[]): Promise<readonly Waits[]> {
  const left: Waits[] = []
  for (let found = first; found.length > 0; ) {
    const ids = found.map(({ id }) => id)
    left.push(...(await cancelExecutions(tx, ids)))
    for (const each of found) {
      tx.emit(runKind, 'cancelled', each, { data: await shownRun(tx, each, null) })
      tellOfRun(tx, each)
      for (const watcher of runWatchers.all()) if (watcher.watches(each)) await watcher.changed(tx, each)
    }
    found = await cancelBelow(tx, ids)
  }
  return left
}

/** Nobody needs these turns and approvals any more. */
async function endWhatWaits(tx: Tx, services: Services, own: readonly Waits[], left: readonly Waits[]): Promise<void> {
  const waited = [...own, ...left]
  for (const { generation_id } of waited) if (generation_id !== null) await cancelTurnLeft(tx, services, generation_id)
  const approvals = waited.flatMap(({ approval_id }) => approval_id ?? [])
  if (approvals.length > 0) await withdrawApprovals(tx, approvals)
}
