import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { Advance, isFailure } from '../engine/advance.ts'
import { requireKnownRun } from '../engine/context.ts'
import { type DrivenRun, findDriver } from '../engine/driver.ts'
import { loadPinnedGraph } from '../engine/pinned-graph.ts'
import { jsonBytes, MAX_ARTIFACT_BYTES, storableArtifact } from '../engine/run-state.ts'
import { submittedOutcome } from '../engine/start-node.ts'
import { isRunTerminal, type RunRow, runKind } from '../model.ts'
import { runQueue } from '../queue.ts'
import { loadRun } from '../store.ts'
import { pauseDescendants } from './control-descendants.ts'

/** Commands of callers. Each locks the run and leaves the work that follows to a worker. */

/**
 * Locks a run for a command. A driven run refuses commands unless its driver gives them (`driven`).
 * @throws ORCHESTRATION_RUN_NOT_FOUND, SERVICE_NOT_READY in a process that cannot read the run, or the refusal of the driver
 */
async function lockForCommand(
  tx: Tx,
  services: Services,
  id: string,
  driven: DrivenRun | null = null,
): Promise<Advance> {
  const loaded = await loadRun(tx, id, driven !== null)
  if (!loaded && !driven) await (await findDriver(tx, id))?.refuse(tx, id)
  if (!loaded) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id } })
  requireKnownRun(services, loaded)
  const pinned = await loadPinnedGraph(services, tx, loaded)
  if (!pinned) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id } })
  return new Advance(services, tx, pinned.graph, loaded, driven)
}

/**
 * Cancels a run with its descendants.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_CANCELLABLE
 */
export async function cancelRun(tx: Tx, services: Services, id: string, driven?: DrivenRun): Promise<RunRow> {
  const advance = await lockForCommand(tx, services, id, driven)
  if (isRunTerminal(advance.run)) raise('ORCHESTRATION_RUN_NOT_CANCELLABLE', { meta: { status: advance.run.status } })
  await advance.stop('cancelled', null)
  await advance.save(false)
  return advance.run
}

/**
 * Submits input to a waiting node; of concurrent submissions the first is accepted.
 * @param awaited whether the caller waits for the run
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_AWAITING_INPUT, ORCHESTRATION_RUN_PAUSED,
 *   ORCHESTRATION_HUMAN_NODE_MISMATCH, VALIDATION_FAILED
 */
export async function submitInput(
  tx: Tx,
  services: Services,
  id: string,
  node_id: string,
  output: unknown,
  awaited = false,
): Promise<RunRow> {
  const advance = await lockForCommand(tx, services, id)
  const { status } = advance.run
  const waiting = [...advance.open.values()].filter(
    row => row.status === 'requires_action' && (row.node_type === 'human' || row.node_type === 'webhook'),
  )
  if (isRunTerminal(advance.run) || advance.stopping)
    return raise('ORCHESTRATION_RUN_NOT_AWAITING_INPUT', { meta: { status } })
  if (advance.paused) return raise('ORCHESTRATION_RUN_PAUSED', { meta: { pause_reason: advance.run.pause_reason } })
  if (waiting.length === 0) return raise('ORCHESTRATION_RUN_NOT_AWAITING_INPUT', { meta: { status } })
  const row = waiting.find(execution => execution.node_id === node_id)
  if (!row)
    return raise('ORCHESTRATION_HUMAN_NODE_MISMATCH', {
      meta: { node_id, node_ids: waiting.map(execution => execution.node_id) },
    })
  const outcome = submittedOutcome(output)
  const options = row.progress?.options as unknown[] | null | undefined
  const { choice } = outcome.artifact as { choice?: unknown }
  if (options && choice !== undefined && !options.includes(choice))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'output.choice', message: `must be one of ${options.join(', ')}` })
  if (jsonBytes(outcome.artifact) > MAX_ARTIFACT_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'output', message: 'must be at most 1 MiB of JSON' })
  advance.run.awaited = awaited
  await advance.complete(row, { ...outcome, artifact: storableValue(outcome.artifact) })
  tx.send(runQueue, advance.message)
  await advance.save(false)
  return advance.run
}

/**
 * Completes a waiting node of a driven run, also while the run is paused; later nodes then start on resume.
 * @throws Error if the node does not wait
 */
export async function completeDrivenNode(
  tx: Tx,
  services: Services,
  id: string,
  { node_id, artifact, driven }: { node_id: string; artifact: unknown; driven: DrivenRun },
): Promise<RunRow> {
  const advance = await lockForCommand(tx, services, id, driven)
  const row = [...advance.open.values()].find(
    execution => execution.node_id === node_id && execution.status === 'requires_action',
  )
  if (!row) throw new Error(`node ${node_id} of run ${id} is not waiting`)
  try {
    await advance.complete(row, { artifact: storableArtifact(advance.node(node_id), artifact) })
  } catch (error) {
    if (!isFailure(error)) throw error
    advance.fail(row, error)
  }
  if (!(await advance.hasStopped())) tx.send(runQueue, advance.message)
  await advance.save(false)
  return advance.run
}

/**
 * Pauses a run with its descendants; the first reason is kept.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_PAUSABLE
 */
export async function pauseRun(
  tx: Tx,
  services: Services,
  id: string,
  reason: string | null,
  driven?: DrivenRun,
): Promise<RunRow> {
  const advance = await lockForCommand(tx, services, id, driven)
  if (isRunTerminal(advance.run)) raise('ORCHESTRATION_RUN_NOT_PAUSABLE', { meta: { status: advance.run.status } })
  advance.run.pause_requested_at ??= advance.nowText
  advance.run.pause_reason ??= reason
  advance.run.paused_with_project = false
  await pauseDescendants(tx, advance.run.project_id, [id], reason)
  await advance.save(false)
  return advance.run
}

/**
 * Resumes a run; pauses of its descendants remain.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, ORCHESTRATION_RUN_NOT_AWAITING_INPUT, PROJECT_PAUSED
 */
export async function resumeRun(
  tx: Tx,
  services: Services,
  id: string,
  { driven, awaited = false }: { driven?: DrivenRun; awaited?: boolean } = {},
): Promise<RunRow> {
  const { project_id } = await runKind.lock(tx, id)
  await lockUnpaused(tx, project_id)
  const advance = await lockForCommand(tx, services, id, driven)
  const { status, pause_requested_at } = advance.run
  if (isRunTerminal(advance.run) || (pause_requested_at === null && status !== 'awaiting_input'))
    return raise('ORCHESTRATION_RUN_NOT_AWAITING_INPUT', { meta: { status } })
  advance.run.awaited = awaited
  advance.run.pause_requested_at = null
  advance.run.pause_reason = null
  advance.run.paused_with_project = false
  tx.send(runQueue, advance.message)
  await advance.save(false)
  return advance.run
}
