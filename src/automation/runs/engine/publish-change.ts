import { fileExceptionInTx } from '../../../control/exceptions/file-exception.ts'
import type { PricedUsage } from '../../../control/usage/price-usage.ts'
import { withoutTriggerChain } from '../../../core/db/trigger-chain.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { type RunRow, runKind } from '../model.ts'
import { runQueue, runWakeQueue } from '../queue.ts'
import { presentRunDetail } from '../reads/present-run.ts'
import { lockRunSlots, longestQueued } from '../store.ts'
import { executionsOf, type NodeExecutionRow } from './node-execution-store.ts'
import { runWatchers } from './run-watchers.ts'

/** A run that has changed. */
export type RunChange = {
  run: RunRow
  before: Pick<RunRow, 'status' | 'required_actions'>
  /** Its attempts that are new or have changed. */
  attempts: Iterable<NodeExecutionRow>
  /** Whether the database holds attempts of it. */
  hasAttempts: boolean
  /** What it has used that is not written yet. */
  used: readonly PricedUsage[]
  /** Whether a module drives it, which tells of its failures itself. */
  driven: boolean
  /** Whether it may have kept others of its project from running. */
  heldRoom: boolean
}

/** Tells those who wait for a run what has become of it, and gives its room to others. */
export async function publishChange(tx: Tx, change: RunChange): Promise<void> {
  const { run, before, used, driven } = change
  const { status } = run
  if (status === before.status) {
    if (isOther(run.required_actions, before.required_actions)) notifyParent(tx, run)
    return
  }
  notifyParent(tx, run)
  if (status !== 'running' && change.heldRoom) await releaseRunSlot(tx, run)
  if (status === 'queued' || status === 'running' || status === 'sleeping') return
  const data = await presentRunDetail(tx, run, await allAttempts(tx, change), used)
  tx.emit(runKind, status, run, { data, ...(status === 'failed' ? { extra: { error: run.error } } : {}) })
  if (status === 'failed' && run.parent_id === null && !driven) reportFailure(tx, run)
  for (const watcher of runWatchers.all()) if (watcher.watches(run)) await watcher.changed(tx, run)
}

const isOther = (one: object, other: object): boolean => JSON.stringify(one) !== JSON.stringify(other)

function notifyParent(tx: Tx, { parent_id, project_id }: RunRow): void {
  if (parent_id !== null) tx.send(runWakeQueue, { run_id: parent_id, project_id })
}

/** Wakes the tree that has waited for room the longest. */
async function releaseRunSlot(tx: Tx, run: RunRow): Promise<void> {
  await lockRunSlots(tx, run.project_id)
  // What led to this run did not lead to those.
  for (const { id, project_id } of await longestQueued(tx, run.project_id, run.root_id))
    withoutTriggerChain(() => tx.send(runQueue, { run_id: id, project_id }))
}

/** All attempts of a run as they stand now, oldest first. */
async function allAttempts(tx: Tx, { run, attempts, hasAttempts }: RunChange): Promise<NodeExecutionRow[]> {
  const changed = new Map([...attempts].map(row => [row.id, row]))
  const stored = hasAttempts ? await executionsOf(tx, run.id) : []
  const kept = stored.map(row => changed.get(row.id) ?? row)
  const known = new Set(kept.map(({ id }) => id))
  return [...kept, ...[...changed.values()].filter(({ id }) => !known.has(id))]
}

function reportFailure(tx: Tx, run: RunRow): void {
  fileExceptionInTx(tx, {
    project_id: run.project_id,
    kind: 'run_failed',
    severity: 'critical',
    title: `A run failed${run.failed_node_id === null ? '' : ` at ${run.failed_node_id}`}`,
    detail: { ...run.error },
    dedup_key: run.id,
    orchestration_run_id: run.id,
  })
}
