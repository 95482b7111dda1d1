import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { HOLDER } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import { rowFromJson } from '#core/db/sql.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { statementOnlyTx, TransactionRequired, type Tx } from '#core/writes/writer.ts'
import type { ToolRow } from '#execution/tools/model.ts'
import { isRunTerminal } from '../model.ts'
import { nodeExecutionQueue } from '../queue.ts'
import { type LoadedRun, loadRun, revisionUnchanged } from '../store.ts'
import { Advance } from './advance.ts'
import { collectOutcomes } from './collect-outcomes.ts'
import { type DrivenRun, findDriver } from './driver.ts'
import type { AdvanceResult, CachedRun } from './node-execution.ts'
import type { ClaimedNode, NodeExecutionRow } from './node-execution-store.ts'
import { loadPinnedGraph } from './pinned-graph.ts'
import { startNode } from './start-node.ts'

/** Failures of runs whose graph cannot be executed. */
const UNRUNNABLE = {
  gone: { code: 'ORCHESTRATION_NOT_FOUND', message: 'Orchestration version not found' },
  cycle: { code: 'ORCHESTRATION_CYCLE_DETECTED', message: 'Graph has a cycle' },
} satisfies Record<string, RecordedFailure>

type Options = {
  /**
   * Applies an event that is not stored in rows, for example the outcome of a node execution. False leaves the run
   * unchanged.
   */
  report?: (advance: Advance) => boolean | Promise<boolean>
  /** Number of ready node executions that the caller executes itself; they are claimed and get no message. */
  claims?: (advance: Advance) => number
  /** The run as this process wrote it last; the advance is written only if the run is unchanged. */
  cached?: CachedRun | null
}

/**
 * Advances a run as far as its rows allow.
 * @returns null if the run is missing, ended or unchanged
 */
export async function advanceRun(
  tx: Tx,
  services: Services,
  runId: string,
  options: Options = {},
): Promise<AdvanceResult | null> {
  const { loaded, driven, readAt } = options.cached
    ? loadCached(options.cached)
    : await lockWithDriver(tx, services, runId)
  if (!loaded || isRunTerminal(loaded)) return null
  return withTriggerChain(triggerChainOf(loaded.authority), () =>
    advanceLoaded(tx, services, { loaded, driven, readAt }, options),
  )
}

/**
 * Advances a cached run in one statement, if no other transaction has changed it. Writes nothing and returns null if
 * the run has changed, the claim was lost, the project is paused, or the advance needs data that is not cached.
 */
export async function advanceIfUnchanged(
  services: Services,
  cached: CachedRun,
  execution: ClaimedNode,
  advance: (tx: Tx) => Promise<AdvanceResult | null>,
): Promise<AdvanceResult | null> {
  let after: AdvanceResult | null = null
  try {
    const { held, now, tool } = await services.writeOne<{ now: string; tool: ToolRow | null }>(async outbox => {
      after = await advance(statementOnlyTx(outbox))
      if (!after) throw new TransactionRequired()
      return revisionUnchanged(cached.loaded, execution, await toolIdOf(services, after))
    })
    return held ? withStatement({ now, tool: tool && rowFromJson(tool) }, after as AdvanceResult | null) : null
  } catch (error) {
    if (error instanceof TransactionRequired) return null
    throw error
  }
}

/** Returns the tool of the claimed node execution; null if none is claimed or it calls none. */
async function toolIdOf(services: Services, { run, claimed }: AdvanceResult): Promise<string | null> {
  if (claimed.length === 0) return null
  const pinned = await loadPinnedGraph(services, services.pool, run)
  return pinned?.graph.node(claimed[0].node_id)?.tool_id ?? null
}

/** Adds what the statement of an advance read, and replaces its estimated time by the time of the statement. */
function withStatement(
  { now, tool }: { now: string; tool: ToolRow | null },
  after: AdvanceResult | null,
): AdvanceResult | null {
  if (!after) return null
  const { run, claimed, cached, estimated } = after
  const exact = <T extends object>(row: T): T =>
    Object.fromEntries(Object.entries(row).map(([key, value]) => [key, value === estimated ? now : value])) as T
  const open = claimed.map(exact)
  return {
    run: exact(run),
    claimed: open,
    tool,
    cached: cached && { loaded: { ...exact(cached.loaded), open }, readAt: performance.now() },
    estimated: null,
  }
}

type LockedRun = { loaded: LoadedRun | null; driven: DrivenRun | null; readAt: number }

/** Returns a cached run with its current time estimated. */
function loadCached({ loaded, readAt }: CachedRun): LockedRun {
  const readNow = performance.now()
  const now = new Date(Date.parse(loaded.now) + readNow - readAt).toISOString()
  return { loaded: { ...loaded, now, open: loaded.open.map(row => ({ ...row })) }, driven: null, readAt: readNow }
}

/** Locks and loads a run. The records of its driver are locked before it. */
async function lockWithDriver(tx: Tx, services: Services, runId: string): Promise<LockedRun> {
  const loaded = await loadRun(tx, runId)
  if (loaded) return { loaded, driven: null, readAt: performance.now() }
  const driver = await findDriver(tx, runId)
  const driven = driver ? await driver.open(tx, services, runId) : null
  return { loaded: driven && (await loadRun(tx, runId, true)), driven, readAt: performance.now() }
}

async function advanceLoaded(
  tx: Tx,
  services: Services,
  { loaded, driven, readAt }: LockedRun & { loaded: LoadedRun },
  options: Options,
): Promise<AdvanceResult | null> {
  const pinned = await loadPinnedGraph(services, tx, loaded)
  const advance = new Advance(services, tx, pinned?.graph ?? EMPTY_GRAPH, loaded, driven, options.cached != null)
  if (options.report && !(await options.report(advance))) return null
  const unrunnable = !pinned ? UNRUNNABLE.gone : pinned.graph.sorted ? null : UNRUNNABLE.cycle
  let continues = false
  if (advance.stopping) await advance.stop('cancelled', null)
  else if (unrunnable) await advance.stop('failed', unrunnable)
  else continues = await advance.proceed({ collectOutcomes, startNode })
  const ended = isRunTerminal(advance.run)
  const ready = ended ? [] : advance.forWorkers.filter(({ status }) => status === 'running')
  const claims = ready.length > 0 ? (options.claims?.(advance) ?? 0) : 0
  const leaseMs = services.config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000
  for (const [index, row] of ready.entries()) {
    if (index < claims) {
      row.deliveries += 1
      row.leased_until = advance.after(leaseMs)
      row.holder = HOLDER
      row.started_at ??= advance.nowText
    } else tx.send(nodeExecutionQueue, { execution_id: row.id, ...advance.message })
    advance.markChanged(row)
  }
  await advance.save(continues)
  const claimed = ready.slice(0, claims)
  const isCacheable = !driven && !continues && claimed.length === 1 && canContinueCached(advance, claimed[0])
  return {
    run: advance.run,
    claimed,
    tool: null,
    cached: isCacheable ? { loaded: { ...loaded, ...advance.run, open: claimed }, readAt } : null,
    estimated: options.cached ? advance.nowText : null,
  }
}

/**
 * Whether a node execution is the only active work of the run and is followed by another node. The end of a run is
 * published with all its executions, so it needs them loaded.
 */
const canContinueCached = ({ run, open, graph, children }: Advance, { id, node_id }: NodeExecutionRow): boolean =>
  run.status === 'running' &&
  children.size === 0 &&
  [...open.values()].every(row => row.applied || row.id === id) &&
  (graph.outgoing.get(node_id) ?? []).length > 0

const EMPTY_GRAPH: Graph = {
  nodes: [],
  order: new Map(),
  node: () => undefined,
  starts: [],
  incoming: new Map(),
  outgoing: new Map(),
  back: new Set(),
  sorted: [],
}
