import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { askedForBy } from '../../../core/iam/authority.ts'
import { type Caller, type CallerDefinition, type PrincipalRecord, principalRecord } from '../../../core/iam/caller.ts'
import type { Services } from '../../../core/process/services.ts'
import { lockUnpaused } from '../../../identity/projects/pause.ts'
import type { Graph } from '../../orchestrations/graph.ts'
import { orchestrationKind, orchestrationVersions } from '../../orchestrations/model.ts'
import { driverOf } from '../engine/driver.ts'
import { hasBegun } from '../engine/node-execution-store.ts'
import { pinnedGraph } from '../engine/pinned-graph.ts'
import { stateWritesOf, withValue } from '../engine/run-state.ts'
import { isRunTerminal, type NodeOutcome, type RunContext, type RunRow } from '../model.ts'
import { buildRunRow, insertRuns } from './start.ts'

export type RunRetry = RunContext & {
  /** Where to begin again, with all that comes behind it; default where the run stood when it ended. */
  from_node_id: string | null
  /** Seconds. */
  expires_in: number | null
  /** Whom the new run runs as; default whom the first one did. */
  authority?: RunRow['authority']
  /** What its author allows bounds it; default the version of the orchestration. */
  definition?: CallerDefinition
}

/**
 * In whose name a retry goes on: whoever started the run, within what narrows the one who asks for it, and where triggered
 * work asks, marked as caused by that. Raises FORBIDDEN where the mark has no place.
 */
function authorityOf(run: Pick<RunRow, 'authority'>, asker: Caller): PrincipalRecord {
  const authority = askedForBy(run.authority, principalRecord(asker))
  if (!asker.run?.trigger_id) return authority
  const { via } = authority
  const { trigger_id: id, policy_id, chain } = asker.run
  if (via === null) return { ...authority, via: { type: 'trigger', id, policy_id, chain } }
  if (via.type === 'trigger') return { ...authority, via: { ...via, chain: [...new Set([...via.chain, ...chain])] } }
  return raise('FORBIDDEN', { message: 'Work that a trigger started may not retry the run of a bounded credential' })
}

/**
 * Starts a run anew that did not succeed, as whoever started it: of the same version, with its input, and with what nodes had
 * come to by its end.
 * @param asker who asks for it
 * @throws FORBIDDEN, ORCHESTRATION_RUN_NOT_RETRYABLE, PROJECT_PAUSED, VALIDATION_FAILED (from_node_id), ORCHESTRATION_NOT_FOUND,
 *   ORCHESTRATION_NODE_FAILED
 */
export async function retryRun(
  tx: Tx,
  services: Services,
  run: RunRow,
  asker: Caller,
  retry: RunRetry,
): Promise<RunRow> {
  if (!isRunTerminal(run) || run.status === 'succeeded')
    raise('ORCHESTRATION_RUN_NOT_RETRYABLE', { meta: { status: run.status } })
  if (run.driver !== null && !retry.authority) await (await driverOf(tx, run.id))?.refuse(tx, run.id)
  await lockUnpaused(tx, run.project_id)
  const orchestration = await orchestrationKind.reference(tx, run.orchestration_id, run.project_id)
  const pinned = orchestration && (await pinnedGraph(services, tx, run))
  if (!pinned) return raise('ORCHESTRATION_NOT_FOUND', { meta: { id: run.orchestration_id } })
  const { from_node_id, ...given } = retry
  const made = buildRunRow(services, {
    ...given,
    orchestration: { id: run.orchestration_id, project_id: run.project_id, version: run.orchestration_version },
    definition:
      retry.definition ?? (await orchestrationVersions.definition(tx, orchestration, run.orchestration_version)),
    input: run.input,
    metadata: run.metadata,
    authority: retry.authority ?? authorityOf(run, asker),
    permission: run.permission,
    driver: run.driver,
    // A firing is settled by the run that it started.
    trigger: run.trigger_id === null ? null : { id: run.trigger_id, firing_id: null },
  })
  const { outcomes, written } = from_node_id === null ? run : await before(tx, pinned.graph, run, from_node_id)
  const seeded = { ...made, outcomes, written, retry_of_run_id: run.id }
  insertRuns(tx, [seeded])
  return seeded
}

type Seed = Pick<RunRow, 'outcomes' | 'written'>

/** What a run had come to without a node and all that comes behind it. */
async function before(tx: Tx, graph: Graph, run: RunRow, nodeId: string): Promise<Seed> {
  if (!graph.node(nodeId) || !(await hasBegun(tx, run.id, nodeId, Object.hasOwn(run.outcomes, nodeId))))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'from_node_id', message: 'must be a node that the run came to' })
  const discarded = withFollowers(graph, nodeId)
  const kept = Object.entries(run.outcomes).filter(([id]) => !discarded.has(id))
  return replayed(graph, run, kept)
}

function withFollowers(graph: Graph, start: string): ReadonlySet<string> {
  const found = new Set([start])
  for (const id of found) for (const { to } of graph.outgoing.get(id) ?? []) found.add(to)
  return found
}

/** What nodes wrote, made again in the order in which they completed: the state does not say who wrote what. */
function replayed(graph: Graph, { input }: Pick<RunRow, 'input'>, kept: readonly [string, NodeOutcome][]): Seed {
  const seed: Seed = { outcomes: {}, written: {} }
  for (const [id, outcome] of kept) {
    const node = graph.node(id)
    if (!node) continue
    seed.outcomes[id] = outcome
    for (const { path, value } of stateWritesOf(node, { input, ...seed }, outcome.artifact)) {
      seed.written = withValue(seed.written, path, value)
    }
  }
  return seed
}
