import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import type { PricedUsage } from '#control/usage/price-usage.ts'
import type { RunTotals } from '#control/usage/report-store.ts'
import type { Services } from '#core/base/services.ts'
import { withoutTriggerChain } from '#core/db/trigger-chain.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type RunRow, runKind } from '../model.ts'
import { runQueue, runWakeQueue } from '../queue.ts'
import { presentRunDetail } from '../reads/present-run.ts'
import { listNextQueuedTree, lockRunSlots } from '../store.ts'
import { listExecutions, type NodeExecutionRow } from './node-execution-store.ts'
import { notifyRunChanged, runWaiters, sealRunEnd } from './run-notifications.ts'

/** A changed run. */
export type RunChange = {
  run: RunRow
  before: Pick<RunRow, 'status' | 'required_actions'>
  /** New and changed node executions. */
  attempts: Iterable<NodeExecutionRow>
  /** All other node executions of the run; null if they must be read. */
  past: readonly NodeExecutionRow[] | null
  /** Usage that is not written yet. */
  used: readonly PricedUsage[]
  /** All other usage of the run; null if it must be read. */
  written: readonly RunTotals[] | null
  /** Whether a driver reports the failure of the run. */
  driven: boolean
  /** Whether the run may have occupied a run slot of its project. */
  mayHaveHeldSlot: boolean
}

/**
 * Publishes a change of a run: notifies its readers. After a change of status or required actions wakes the parent, frees
 * the run slot, emits the event and calls the watchers.
 */
export async function publishChange(tx: Tx, services: Services, change: RunChange): Promise<void> {
  const { run, before, used, driven } = change
  const { status } = run
  if (status === before.status) {
    if (differs(run.required_actions, before.required_actions)) notifyParent(tx, run)
    return notifyRunChanged(tx, run)
  }
  notifyParent(tx, run)
  if (status !== 'running' && change.mayHaveHeldSlot) await releaseRunSlot(tx, run)
  if (status === 'queued' || status === 'running' || status === 'sleeping') return notifyRunChanged(tx, run)
  const data = await presentRunDetail(tx, run, await listAllExecutions(tx, change), used, change.written)
  notifyRunChanged(tx, run, run.awaited ? sealRunEnd(services, run, data) : null)
  tx.emit(runKind, status, run, { data, ...(status === 'failed' ? { extra: { error: run.error } } : {}) })
  if (status === 'failed' && run.parent_id === null && !driven) fileRunException(tx, run)
  await runWaiters.notify(tx, run)
}

const differs = (one: object, other: object): boolean => JSON.stringify(one) !== JSON.stringify(other)

function notifyParent(tx: Tx, { parent_id, project_id }: RunRow): void {
  if (parent_id !== null) tx.send(runWakeQueue, { run_id: parent_id, project_id })
}

/** Wakes the tree that has waited longest for a run slot. */
async function releaseRunSlot(tx: Tx, run: RunRow): Promise<void> {
  await lockRunSlots(tx, run.project_id)
  // The trigger chain of this run does not apply to the runs that it wakes.
  for (const { id, project_id } of await listNextQueuedTree(tx, run.project_id, run.root_id))
    withoutTriggerChain(() => tx.send(runQueue, { run_id: id, project_id }))
}

/** Returns all node executions of a run with their current changes, oldest first. */
async function listAllExecutions(tx: Tx, { run, attempts, past }: RunChange): Promise<NodeExecutionRow[]> {
  const all = new Map((past ?? (await listExecutions(tx, run.id))).map(row => [row.id, row]))
  for (const row of attempts) all.set(row.id, row)
  const createdAt = ({ created_at }: NodeExecutionRow) => Date.parse(created_at)
  return [...all.values()].sort((one, other) => createdAt(one) - createdAt(other) || (one.id < other.id ? -1 : 1))
}

function fileRunException(tx: Tx, run: RunRow): void {
  fileExceptionInTx(tx, {
    project_id: run.project_id,
    kind: 'run_failed',
    severity: 'critical',
    title: `Run failed${run.failed_node_id === null ? '' : ` at node ${run.failed_node_id}`}`,
    detail: { ...run.error },
    dedup_key: run.id,
    orchestration_run_id: run.id,
  })
}
