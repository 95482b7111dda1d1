import { startsRuns } from '#automation/orchestrations/definition/definition.ts'
import type { Services } from '#core/base/services.ts'
import { withoutTriggerChain } from '#core/db/trigger-chain.ts'
import type { Tx } from '#core/writes/writer.ts'
import { withdrawApprovals } from '#execution/approvals/node-approval.ts'
import { cancelActiveTurns } from '#execution/generations/request/cancel-turn.ts'
import { cancelExecutions, listExecutionsByRun, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { notifyRunChanged, runWaiters } from '../engine/run-notifications.ts'
import { type RunRow, runKind } from '../model.ts'
import { descendantsQueue, runQueue, runWakeQueue } from '../queue.ts'
import { presentRunDetails } from '../reads/present-run.ts'
import { listLongestQueued } from '../store.ts'
import {
  type CancelledRun,
  cancelRuns,
  cancelTrees,
  hasMoreLiveRuns,
  type ListedRun,
  MAX_TREE,
  runsOfOrchestration,
  runsStartedBy,
} from './tree-store.ts'

/** Limit of runs that one transaction cancels or pauses. */
export const MAX_RUNS_PER_TX = 100

type AwaitedWork = Pick<NodeExecutionRow, 'generation_id' | 'approval_id'>

/**
 * Cancels the active work of a run: its turns, approvals and descendants. Large trees are cancelled by workers after
 * this transaction.
 * @param rows node executions of the run
 * @param executionId restricts the cancelled runs to those started by this node execution
 */
export async function cancelDescendants(
  tx: Tx,
  services: Services,
  run: Pick<RunRow, 'id' | 'project_id'>,
  rows: readonly (AwaitedWork & Pick<NodeExecutionRow, 'node_type'>)[],
  executionId: string | null,
): Promise<void> {
  const nests = executionId !== null || rows.some(({ node_type }) => startsRuns(node_type))
  const awaited = nests ? await cancelStarted(tx, run.project_id, [run.id], executionId) : []
  await cancelAwaitedWork(tx, services, [...rows, ...awaited])
}

/** Cancels the descendants of runs. Returns the work that the node executions cancelled here waited for. */
async function cancelStarted(
  tx: Tx,
  projectId: string,
  runIds: readonly string[],
  executionId: string | null = null,
): Promise<readonly AwaitedWork[]> {
  const roots = runsStartedBy(runIds, executionId)
  if (!(await hasMoreLiveRuns(tx, roots, MAX_RUNS_PER_TX)))
    return (await cancelRemaining(tx, await cancelTrees(tx, roots))).awaited
  for (const run_id of runIds)
    tx.send(descendantsQueue, { run_id, project_id: projectId, execution_id: executionId, pause: null, after: null })
  return []
}

/**
 * Publishes cancelled runs and cancels runs that they started in the meantime, until there are none. Returns all of them, and
 * the work that their node executions waited for.
 */
async function cancelRemaining(
  tx: Tx,
  first: readonly CancelledRun[],
): Promise<{ cancelled: CancelledRun[]; awaited: AwaitedWork[] }> {
  const cancelled: CancelledRun[] = []
  const awaited: AwaitedWork[] = []
  for (let found = first; found.length > 0; ) {
    cancelled.push(...found)
    awaited.push(...(await publishCancelled(tx, found)))
    found = await cancelTrees(tx, runsStartedBy(found.map(({ id }) => id)))
  }
  return { cancelled, awaited }
}

/**
 * Cancels the node executions of cancelled runs, emits the events of the runs and calls their watchers. Returns the
 * work that the node executions waited for.
 */
async function publishCancelled(tx: Tx, runs: readonly RunRow[]): Promise<readonly AwaitedWork[]> {
  const ids = runs.map(({ id }) => id)
  const awaited = await cancelExecutions(tx, ids)
  const records = await presentRunDetails(tx, runs, await listExecutionsByRun(tx, ids))
  for (const [index, run] of runs.entries()) {
    tx.emit(runKind, 'cancelled', run, { data: records[index] })
    notifyRunChanged(tx, run)
    await runWaiters.notify(tx, run)
  }
  return awaited
}

/** Limit of runs that a transaction of a worker cancels, and of the listed runs of a page. */
export const PAGE_RUNS = 500

/**
 * Cancels a page of runs with their descendants, wakes their parents and releases their run slots. Small trees are cancelled
 * with the page, each larger one by a separate message. Returns the number of runs of the page that were processed: at most
 * PAGE_RUNS with their small trees.
 */
export async function cancelRunPage(
  tx: Tx,
  services: Services,
  projectId: string,
  listed: readonly ListedRun[],
): Promise<number> {
  const page = listed.slice(0, pageSize(listed))
  const first = await cancelRuns(
    tx,
    page.map(({ id }) => id),
  )
  // Those without descendants too, which they may have started since they were listed.
  const small = page.flatMap(({ id, below }) => (below <= MAX_TREE ? id : []))
  const nested = small.length === 0 ? [] : await cancelTrees(tx, runsStartedBy(small))
  const awaited = await publishCancelled(tx, [...first, ...nested])
  const started = nested.length === 0 ? [] : await cancelTrees(tx, runsStartedBy(nested.map(({ id }) => id)))
  const remaining = await cancelRemaining(tx, started)
  for (const { id: run_id, below } of page)
    if (below > MAX_TREE)
      tx.send(descendantsQueue, { run_id, project_id: projectId, execution_id: null, pause: null, after: null })
  await cancelAwaitedWork(tx, services, [...awaited, ...remaining.awaited])
  await wakeAfterCancel(tx, projectId, [...first, ...nested, ...remaining.cancelled])
  return page.length
}

/** Returns how many listed runs fit in one transaction with their small trees; at least one. */
function pageSize(listed: readonly ListedRun[]): number {
  let runs = 0
  const end = listed.findIndex(({ below }) => (runs += below > MAX_TREE ? 1 : 1 + below) > PAGE_RUNS)
  return end === -1 ? listed.length : Math.max(1, end)
}

/** Cancels the live runs of an orchestration with their descendants. */
export async function cancelOrchestrationRuns(
  tx: Tx,
  services: Services,
  { id, project_id }: { id: string; project_id: string },
): Promise<void> {
  const first = await cancelTrees(tx, runsOfOrchestration(id))
  if (first.length === 0) return
  const { cancelled, awaited } = await cancelRemaining(tx, first)
  await cancelAwaitedWork(tx, services, awaited)
  await wakeAfterCancel(tx, project_id, cancelled)
}

async function wakeAfterCancel(tx: Tx, project_id: string, cancelled: readonly CancelledRun[]): Promise<void> {
  const ids = new Set(cancelled.map(({ id }) => id))
  const parents = new Set(cancelled.map(({ parent_id }) => parent_id))
  for (const run_id of parents) if (run_id !== null && !ids.has(run_id)) tx.send(runWakeQueue, { run_id, project_id })
  const freed = cancelled.filter(({ was_running }) => was_running).length
  if (freed === 0) return
  for (const { id: run_id } of await listLongestQueued(tx, project_id, freed))
    withoutTriggerChain(() => tx.send(runQueue, { run_id, project_id }))
}

/** Cancels turns and withdraws approvals that cancelled node executions waited for. */
async function cancelAwaitedWork(tx: Tx, services: Services, works: readonly AwaitedWork[]): Promise<void> {
  const turns = works.flatMap(({ generation_id }) => generation_id ?? [])
  await cancelActiveTurns(tx, services, turns)
  const approvals = works.flatMap(({ approval_id }) => approval_id ?? [])
  if (approvals.length > 0) await withdrawApprovals(tx, approvals)
}
