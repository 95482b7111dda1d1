import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import { storableValue } from '../../../core/api/storable-text.ts'
import type { Tx } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import { lockUnpaused } from '../../../identity/projects/pause.ts'
import { Advance, isFailure } from '../engine/advance.ts'
import { type DrivenRun, driverOf } from '../engine/driver.ts'
import { pinnedGraph } from '../engine/pinned-graph.ts'
import { jsonBytes, MAX_ARTIFACT_BYTES, storableArtifact } from '../engine/run-state.ts'
import { submittedOutcome } from '../engine/start-node.ts'
import { isRunTerminal, type RunRow, runKind } from '../model.ts'
import { runQueue } from '../queue.ts'
import { loadRun } from '../store.ts'
import { pauseStarted } from './below.ts'

/** Commands that callers give a run. Each takes the run's lock and leaves the work that follows to a worker. */

/**
 * A run as a command changes it; what its rows allow is done by a worker. Raises ORCHESTRATION_RUN_NOT_FOUND, and for a run
 * that a module drives what that refuses it with, unless the command is the module's, which holds its records.
 */
async function opened(tx: Tx, services: Services, id: string, driven: DrivenRun | null = null): Promise<Advance> {
  const loaded = await loadRun(tx, id, driven !== null)
  if (!loaded && !driven) await (await driverOf(tx, id))?.refuse(tx, id)
  if (!loaded) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id } })
  const pinned = await pinnedGraph(services, tx, loaded)
  if (!pinned) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id } })
  return new Advance(services, tx, pinned.graph, loaded, driven)
}

/**
 * Ends a run at once, with everything below it.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_CANCELLABLE
 */
export async function cancelRun(tx: Tx, services: Services, id: string, driven?: DrivenRun): Promise<RunRow> {
  const run = await opened(tx, services, id, driven)
  if (isRunTerminal(run.run)) raise('ORCHESTRATION_RUN_NOT_CANCELLABLE', { meta: { status: run.run.status } })
  await run.stop('cancelled', null)
  await run.save(false)
  return run.run
}

/**
 * Gives a node that waits for input its answer: of two that come at once one is taken.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_AWAITING_INPUT, ORCHESTRATION_RUN_PAUSED,
 *   ORCHESTRATION_HUMAN_NODE_MISMATCH, VALIDATION_FAILED
 */
export async function submitInput(
  tx: Tx,
  services: Services,
  id: string,
  node_id: string,
  output: unknown,
): Promise<RunRow> {
  const run = await opened(tx, services, id)
  const { status } = run.run
  const waiting = [...run.open.values()].filter(
    row => row.status === 'requires_action' && (row.node_type === 'human' || row.node_type === 'webhook'),
  )
  if (isRunTerminal(run.run) || run.stopping) return raise('ORCHESTRATION_RUN_NOT_AWAITING_INPUT', { meta: { status } })
  if (run.paused) return raise('ORCHESTRATION_RUN_PAUSED', { meta: { pause_reason: run.run.pause_reason } })
  if (waiting.length === 0) return raise('ORCHESTRATION_RUN_NOT_AWAITING_INPUT', { meta: { status } })
  const row = waiting.find(each => each.node_id === node_id)
  if (!row)
    return raise('ORCHESTRATION_HUMAN_NODE_MISMATCH', {
      meta: { node_id, node_ids: waiting.map(each => each.node_id) },
    })
  const outcome = submittedOutcome(output)
  const options = row.progress?.options as unknown[] | null | undefined
  const { choice } = outcome.artifact as { choice?: unknown }
  if (options && choice !== undefined && !options.includes(choice))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'output.choice', message: `must be one of ${options.join(', ')}` })
  if (jsonBytes(outcome.artifact) > MAX_ARTIFACT_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'output', message: 'must be at most 1 MiB of JSON' })
  run.complete(row, { ...outcome, artifact: storableValue(outcome.artifact) })
  tx.send(runQueue, run.message)
  await run.save(false)
  return run.run
}

/**
 * Ends the wait of a node of a run that the caller drives, also while the run is paused: what follows waits.
 * @throws Error for a node that does not wait
 */
export async function completeDrivenNode(
  tx: Tx,
  services: Services,
  id: string,
  { node_id, artifact, driven }: { node_id: string; artifact: unknown; driven: DrivenRun },
): Promise<RunRow> {
  const run = await opened(tx, services, id, driven)
  const row = [...run.open.values()].find(each => each.node_id === node_id && each.status === 'requires_action')
  if (!row) throw new Error(`the node ${node_id} of ${id} does not wait`)
  try {
    run.complete(row, { artifact: storableArtifact(run.node(node_id), artifact) })
  } catch (error) {
    if (!isFailure(error)) throw error
    run.fail(row, error)
  }
  if (!(await run.hasStopped())) tx.send(runQueue, run.message)
  await run.save(false)
  return run.run
}

/**
 * Pauses a run with everything below it: the first reason stays.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_PAUSABLE
 */
export async function pauseRun(
  tx: Tx,
  services: Services,
  id: string,
  reason: string | null,
  driven?: DrivenRun,
): Promise<RunRow> {
  const run = await opened(tx, services, id, driven)
  if (isRunTerminal(run.run)) raise('ORCHESTRATION_RUN_NOT_PAUSABLE', { meta: { status: run.run.status } })
  run.run.pause_requested_at ??= run.nowText
  run.run.pause_reason ??= reason
  run.run.paused_with_project = false
  await pauseStarted(tx, run.run.project_id, [id], reason)
  await run.save(false)
  return run.run
}

/**
 * Lifts the pause of a run, but not those of runs below it, and has it go on.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_AWAITING_INPUT, PROJECT_PAUSED
 */
export async function resumeRun(tx: Tx, services: Services, id: string, driven?: DrivenRun): Promise<RunRow> {
  const { project_id } = await runKind.lock(tx, id)
  await lockUnpaused(tx, project_id)
  const run = await opened(tx, services, id, driven)
  const { status, pause_requested_at } = run.run
  if (isRunTerminal(run.run) || (pause_requested_at === null && status !== 'awaiting_input'))
    return raise('ORCHESTRATION_RUN_NOT_AWAITING_INPUT', { meta: { status } })
  run.run.pause_requested_at = null
  run.run.pause_reason = null
  run.run.paused_with_project = false
  tx.send(runQueue, run.message)
  await run.save(false)
  return run.run
}
