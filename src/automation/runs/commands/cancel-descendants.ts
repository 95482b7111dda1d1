import { withoutTriggerChain } from '../../../core/db/trigger-chain.ts'
import type { Tx } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import { withdrawApprovals } from '../../../execution/approvals/node-approval.ts'
import { cancelTurnIfActive } from '../../../execution/generations/request/cancel-turn.ts'
import { startsRuns } from '../../orchestrations/definition.ts'
import { cancelExecutions, listedExecutions, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { notifyRunChanged } from '../engine/run-notifications.ts'
import { runWatchers } from '../engine/run-watchers.ts'
import { type RunRow, runKind } from '../model.ts'
import { belowQueue, runQueue, runWakeQueue } from '../queue.ts'
import { presentRunDetail } from '../reads/present-run.ts'
import { longestQueuedOf } from '../store.ts'
import { cancelRuns, cancelTrees, isLarger, type ListedRun, rootsBelow, rootsOf } from './tree-store.ts'

/** Runs that one transaction stops or pauses. */
export const AT_ONCE = 100

type Waits = Pick<NodeExecutionRow, 'generation_id' | 'approval_id'>

/**
 * Ends what a run has under way: turns that it waits for, approvals that nobody needs any more, and the runs below it with
 * all of theirs. Those of a large tree are stopped by workers, behind this transaction.
 * @param rows attempts of the run itself
 * @param executionId only what this attempt started
 */
export async function cancelDescendants(
  tx: Tx,
  services: Services,
  run: Pick<RunRow, 'id' | 'project_id'>,
  rows: readonly (Waits & Pick<NodeExecutionRow, 'node_type'>)[],
  executionId: string | null,
): Promise<void> {
  const nests = executionId !== null || rows.some(({ node_type }) => startsRuns(node_type))
  const left = nests ? await stopStarted(tx, run.project_id, [run.id], executionId) : []
  await endWhatWaits(tx, services, [...rows, ...left])
}

/** Stops what some runs have started. Returns the attempts of what is stopped at once. */
async function stopStarted(
  tx: Tx,
  projectId: string,
  runIds: readonly string[],
  executionId: string | null = null,
): Promise<readonly Waits[]> {
  const roots = rootsBelow(runIds, executionId)
  if (!(await isLarger(tx, roots, AT_ONCE))) return stopTrees(tx, await cancelTrees(tx, roots))
  for (const run_id of runIds)
    tx.send(belowQueue, { run_id, project_id: projectId, execution_id: executionId, pause: null, after: null })
  return []
}

/** Follows runs that were cancelled with those that they had started meanwhile. Returns the attempts of all. */
async function stopTrees(tx: Tx, first: readonly RunRow[]): Promise<readonly Waits[]> {
  const left: Waits[] = []
  for (let found = first; found.length > 0; ) {
    left.push(...(await noteCancelled(tx, found)))
    found = await cancelTrees(tx, rootsBelow(found.map(({ id }) => id)))
  }
  return left
}

/** What follows from runs that were cancelled. Returns their attempts. */
async function noteCancelled(tx: Tx, runs: readonly RunRow[]): Promise<readonly Waits[]> {
  const ids = runs.map(({ id }) => id)
  const left = await cancelExecutions(tx, ids)
  const attempts = await listedExecutions(tx, ids)
  for (const each of runs) {
    tx.emit(runKind, 'cancelled', each, { data: await presentRunDetail(tx, each, attempts.get(each.id) ?? []) })
    notifyRunChanged(tx, each)
    for (const watcher of runWatchers.all()) if (watcher.watches(each)) await watcher.changed(tx, each)
  }
  return left
}

/** Stops a page of runs, and what they have started. Runs that wait for one of them are told, and others get their room. */
export async function stopPage(
  tx: Tx,
  services: Services,
  projectId: string,
  page: readonly ListedRun[],
): Promise<void> {
  const stopped = await cancelRuns(
    tx,
    page.map(({ id }) => id),
  )
  if (stopped.length === 0) return
  const left = [...(await noteCancelled(tx, stopped))]
  const parents = page.flatMap(({ id, is_parent }) => (is_parent ? id : []))
  if (parents.length > 0) left.push(...(await stopStarted(tx, projectId, parents)))
  await endWhatWaits(tx, services, left)
  await tellOfStopped(tx, projectId, stopped)
}

/** The same for the live runs of an orchestration. */
export async function cancelOrchestrationRuns(
  tx: Tx,
  services: Services,
  { id, project_id }: { id: string; project_id: string },
): Promise<void> {
  const first = await cancelTrees(tx, rootsOf(id))
  if (first.length === 0) return
  await endWhatWaits(tx, services, await stopTrees(tx, first))
  await tellOfStopped(tx, project_id, first)
}

async function tellOfStopped(tx: Tx, project_id: string, stopped: readonly RunRow[]): Promise<void> {
  const ids = new Set(stopped.map(({ id }) => id))
  const parents = new Set(stopped.map(({ parent_id }) => parent_id))
  for (const run_id of parents) if (run_id !== null && !ids.has(run_id)) tx.send(runWakeQueue, { run_id, project_id })
  for (const { id: run_id } of await longestQueuedOf(tx, project_id, stopped.length))
    withoutTriggerChain(() => tx.send(runQueue, { run_id, project_id }))
}

/** Nobody needs these turns and approvals any more. */
async function endWhatWaits(tx: Tx, services: Services, waited: readonly Waits[]): Promise<void> {
  for (const { generation_id } of waited)
    if (generation_id !== null) await cancelTurnIfActive(tx, services, generation_id)
  const approvals = waited.flatMap(({ approval_id }) => approval_id ?? [])
  if (approvals.length > 0) await withdrawApprovals(tx, approvals)
}
