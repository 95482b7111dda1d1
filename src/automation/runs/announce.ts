import { addException } from '../../control/exceptions/file.ts'
import type { Rated } from '../../control/usage/rate.ts'
import { uncaused } from '../../core/db/causation.ts'
import type { Tx } from '../../core/db/write.ts'
import { type ExecutionRow, executionsOf } from './attempt-store.ts'
import { type RunRow, runKind } from './model.ts'
import { runQueue, runTold } from './queue.ts'
import { shownRun } from './show.ts'
import { lockRoom, longestQueued } from './store.ts'
import { runWatchers } from './watchers.ts'

/** A run that has changed. */
export type Change = {
  run: RunRow
  before: Pick<RunRow, 'status' | 'required_actions'>
  /** Its attempts that are new or have changed. */
  attempts: Iterable<ExecutionRow>
  /** Whether the database holds attempts of it. */
  hasAttempts: boolean
  /** What it has used that is not written yet. */
  used: readonly Rated[]
  /** Whether a module drives it, which tells of its failures itself. */
  driven: boolean
  /** Whether it may have kept others of its project from running. */
  heldRoom: boolean
}

/** Tells those who wait for a run what has become of it, and gives its room to others. */
export async function announce(tx: Tx, change: Change): Promise<void> {
  const { run, before, used, driven } = change
  const { status } = run
  if (status === before.status) {
    if (isOther(run.required_actions, before.required_actions)) tellParent(tx, run)
    return
  }
  tellParent(tx, run)
  if (status !== 'running' && change.heldRoom) await giveRoom(tx, run)
  if (status === 'queued' || status === 'running' || status === 'sleeping') return
  const data = await shownRun(tx, run, await allAttempts(tx, change), used)
  tx.emit(runKind, status, run, { data, ...(status === 'failed' ? { extra: { error: run.error } } : {}) })
  if (status === 'failed' && run.parent_id === null && !driven) reportFailure(tx, run)
  for (const watcher of runWatchers.all()) if (watcher.watches(run)) await watcher.changed(tx, run)
}

const isOther = (one: object, other: object): boolean => JSON.stringify(one) !== JSON.stringify(other)

function tellParent(tx: Tx, { parent_id, project_id }: RunRow): void {
  if (parent_id !== null) tx.send(runTold, { run_id: parent_id, project_id })
}

/** Wakes the tree that has waited for room the longest. */
async function giveRoom(tx: Tx, run: RunRow): Promise<void> {
  await lockRoom(tx, run.project_id)
  // What led to this run did not lead to those.
  for (const { id, project_id } of await longestQueued(tx, run.project_id, run.root_id))
    uncaused(() => tx.send(runQueue, { run_id: id, project_id }))
}

/** All attempts of a run as they stand now, oldest first. */
async function allAttempts(tx: Tx, { run, attempts, hasAttempts }: Change): Promise<ExecutionRow[]> {
  const changed = new Map([...attempts].map(row => [row.id, row]))
  const stored = hasAttempts ? await executionsOf(tx, run.id) : []
  const kept = stored.map(row => changed.get(row.id) ?? row)
  const known = new Set(kept.map(({ id }) => id))
  return [...kept, ...[...changed.values()].filter(({ id }) => !known.has(id))]
}

function reportFailure(tx: Tx, run: RunRow): void {
  addException(tx, {
    project_id: run.project_id,
    kind: 'run_failed',
    severity: 'critical',
    title: `A run failed${run.failed_node_id === null ? '' : ` at ${run.failed_node_id}`}`,
    detail: { ...run.error },
    dedup_key: run.id,
    orchestration_run_id: run.id,
  })
}
