import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import { orchestrationKind, orchestrationVersions } from '#automation/orchestrations/definition/model.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { narrowToRequester } from '#core/iam/authority.ts'
import { type Caller, type CallerDefinition, type PrincipalRecord, principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { findDriver } from '../engine/driver.ts'
import { hasReachedNode } from '../engine/node-execution-store.ts'
import { loadPinnedGraph } from '../engine/pinned-graph.ts'
import { type ExpressionScope, stateWritesOf, withValue } from '../engine/run-state.ts'
import { isRunTerminal, type NodeOutcome, type RunContext, type RunRow } from '../model.ts'
import { keepUnusedAnswers, withSuccessors } from './retained-answers.ts'
import { buildRunRow, insertRuns } from './start-run.ts'

export type RunRetry = RunContext & {
  /**
   * Node to restart from, discarding its results and the results of all later nodes. Default: the nodes at which the run
   * ended.
   */
  from_node_id: string | null
  /** Lifetime of the new run, in seconds. */
  expires_in: number | null
  /** Principal of the new run. Default: the principal of the original run. */
  authority?: RunRow['authority']
  /** Definition whose author bounds the permissions of the new run. Default: the version of the orchestration. */
  definition?: CallerDefinition
}

/**
 * Returns the authority of a retry: the principal that started the run, narrowed to the bounds of the retrying caller;
 * the trigger chain of triggered work is added.
 * @throws FORBIDDEN if the authority cannot carry the chain
 */
function authorityOf(run: Pick<RunRow, 'authority'>, caller: Caller): PrincipalRecord {
  const authority = narrowToRequester(run.authority, principalRecord(caller))
  if (!caller.run?.trigger_id) return authority
  const { via } = authority
  const { trigger_id: id, policy_id, chain } = caller.run
  if (via === null) return { ...authority, via: { type: 'trigger', id, policy_id, chain } }
  if (via.type === 'trigger') return { ...authority, via: { ...via, chain: [...new Set([...via.chain, ...chain])] } }
  return raise('FORBIDDEN', { message: 'Triggered work cannot retry a run started with a bounded credential' })
}

/**
 * Starts a new run of the same version with the input of an ended run and the outcomes of its completed nodes, with the
 * permissions of the principal that started it.
 * @param caller caller of the retry
 * @throws FORBIDDEN, ORCHESTRATION_RUN_NOT_RETRYABLE, PROJECT_PAUSED, VALIDATION_FAILED (from_node_id),
 *   ORCHESTRATION_NOT_FOUND, ORCHESTRATION_NODE_FAILED
 */
export async function retryRun(
  tx: Tx,
  services: Services,
  run: RunRow,
  caller: Caller,
  retry: RunRetry,
): Promise<RunRow> {
  if (!isRunTerminal(run) || run.status === 'succeeded')
    raise('ORCHESTRATION_RUN_NOT_RETRYABLE', { meta: { status: run.status } })
  if (run.driver !== null && !retry.authority) await (await findDriver(tx, run.id))?.refuse(tx, run.id)
  await lockUnpaused(tx, run.project_id)
  const orchestration = await orchestrationKind.reference(tx, run.orchestration_id, run.project_id)
  const pinned = orchestration && (await loadPinnedGraph(services, tx, run))
  if (!pinned) return raise('ORCHESTRATION_NOT_FOUND', { meta: { id: run.orchestration_id } })
  const { from_node_id, ...options } = retry
  const row = buildRunRow(services, {
    ...options,
    orchestration: { id: run.orchestration_id, project_id: run.project_id, version: run.orchestration_version },
    definition:
      retry.definition ?? (await orchestrationVersions.definition(tx, orchestration, run.orchestration_version)),
    input: run.input,
    metadata: run.metadata,
    authority: retry.authority ?? authorityOf(run, caller),
    permission: run.permission,
    driver: run.driver,
    source: run.source,
    // A firing is settled by the original run.
    trigger: run.trigger_id === null ? null : { id: run.trigger_id, firing_id: null },
  })
  const { outcomes, written } = await keptResults(tx, services, pinned.graph, run, from_node_id)
  const seeded = { ...row, outcomes, written, retry_of_run_id: run.id }
  insertRuns(tx, [seeded])
  return seeded
}

type Seed = Pick<RunRow, 'outcomes' | 'written'>

/**
 * Returns the state of a run without the results of a node and of all later nodes, and without answers of people that would
 * release a call again.
 */
async function keptResults(
  tx: Tx,
  services: Services,
  graph: Graph,
  run: RunRow,
  nodeId: string | null,
): Promise<Seed> {
  if (nodeId !== null && !(graph.node(nodeId) && (await isReached(tx, run, nodeId))))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'from_node_id', message: 'must be a node that the run has reached' })
  const all = Object.keys(run.outcomes)
  const discarded = nodeId === null ? undefined : withSuccessors(graph, nodeId)
  const kept = new Set(all.filter(id => !discarded?.has(id)))
  await keepUnusedAnswers(tx, services, graph, run, kept)
  if (kept.size === all.length) return run
  return replayWrites(
    { services, project_id: run.project_id },
    graph,
    run,
    Object.entries(run.outcomes).filter(([id]) => kept.has(id)),
  )
}

const isReached = (tx: Tx, { id, outcomes }: RunRow, nodeId: string): Promise<boolean> =>
  hasReachedNode(tx, id, nodeId, Object.hasOwn(outcomes, nodeId))

/** Rebuilds the state writes of nodes in order of completion; the state does not record its writers. */
async function replayWrites(
  scope: ExpressionScope,
  graph: Graph,
  { input }: Pick<RunRow, 'input'>,
  remaining: readonly [string, NodeOutcome][],
): Promise<Seed> {
  const seed: Seed = { outcomes: {}, written: {} }
  for (const [id, outcome] of remaining) {
    const node = graph.node(id)
    if (!node) continue
    seed.outcomes[id] = outcome
    for (const { path, value } of await stateWritesOf(scope, node, { input, ...seed }, outcome.artifact)) {
      seed.written = withValue(seed.written, path, value)
    }
  }
  return seed
}
