import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { HOLDER } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import { traced } from '#core/base/telemetry.ts'
import { rowFromJson } from '#core/db/sql.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { statementOnlyTx, TransactionRequired, type Tx } from '#core/writes/writer.ts'
import type { ToolRow } from '#execution/tools/model.ts'
import { isRunTerminal } from '../model.ts'
import { nodeExecutionQueue } from '../queue.ts'
import { readWrittenUsage, type WrittenUsage } from '../reads/usage.ts'
import { type LoadedRun, loadRun, revisionUnchanged } from '../store.ts'
import { Advance } from './advance.ts'
import { collectOutcomes } from './collect-outcomes.ts'
import { requireKnownRun } from './context.ts'
import { type DrivenRun, findDriver } from './driver.ts'
import type { AdvanceResult, CachedRun, PastExecutions } from './node-execution.ts'
import { type ClaimedNode, type NodeExecutionRow, STATEMENT_TIMES } from './node-execution-store.ts'
import { loadPinnedGraph } from './pinned-graph.ts'
import { jsonBytes } from './run-state.ts'
import { noteRun, runSpan } from './spans.ts'
import { startNode } from './start-node.ts'

/** Failures of runs whose graph cannot be executed. */
const UNRUNNABLE = {
  gone: { code: 'ORCHESTRATION_NOT_FOUND', message: 'Orchestration version not found' },
  cycle: { code: 'ORCHESTRATION_CYCLE_DETECTED', message: 'Graph has a cycle' },
} satisfies Record<string, RecordedFailure>

/** A run that is advanced without being read, and what its end needs. */
export type CachedStart = {
  /** The run as this process wrote it last; the advance is written only if the run is unchanged. */
  cached: CachedRun
  written: WrittenUsage | null
}

type Options = Partial<CachedStart> & {
  /**
   * Applies an event that is not stored in rows, for example the outcome of a node execution. False leaves the run
   * unchanged.
   */
  report?: (advance: Advance) => boolean | Promise<boolean>
  /** Number of the ready node executions that the caller executes itself; they are claimed and get no message. */
  claims?: (advance: Advance, ready: number) => number | Promise<number>
}

/**
 * Advances a run as far as its rows allow.
 * @returns null if the run is missing, ended or unchanged
 * @throws NewerFormatError if only a later release can continue the run
 */
export async function advanceRun(
  tx: Tx,
  services: Services,
  runId: string,
  options: Options = {},
): Promise<AdvanceResult | null> {
  const { loaded, driven, readAt } = options.cached
    ? loadCached(options.cached, options.written ?? null)
    : await lockWithDriver(tx, services, runId)
  if (!loaded || isRunTerminal(loaded)) return null
  // A cached run is a run that this process has loaded.
  if (!options.cached) requireKnownRun(services, loaded)
  return withTriggerChain(triggerChainOf(loaded.authority), () =>
    traced(runSpan, loaded, async span => {
      const after = await advanceLoaded(tx, services, { loaded, driven, readAt }, options)
      if (span && after) noteRun(span, services, tx, after.run)
      return after
    }),
  )
}

/**
 * Advances a cached run in one statement, if no other transaction has changed it. Writes nothing and returns null if
 * the run has changed, the claim was lost, the project is paused, or the advance needs data that is not cached.
 */
export async function advanceIfUnchanged(
  services: Services,
  { cached, mayEnd }: { cached: CachedRun; mayEnd: boolean },
  execution: ClaimedNode,
  advance: (tx: Tx, from: CachedStart) => Promise<AdvanceResult | null>,
): Promise<AdvanceResult | null> {
  let after: AdvanceResult | null = null
  const written = mayEnd ? await readForEnd(services, cached, execution) : null
  try {
    const { held, now, tool } = await services.writeOne<{ now: string; tool: ToolRow | null }>(async outbox => {
      after = await advance(statementOnlyTx(outbox), { cached, written })
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

const ESTIMATED_TIMES = ['now', ...STATEMENT_TIMES]

/** Adds what the statement of an advance read, and replaces its estimated time by the time of the statement. */
function withStatement(
  { now, tool }: { now: string; tool: ToolRow | null },
  after: AdvanceResult | null,
): AdvanceResult | null {
  if (!after) return null
  const { run, claimed, cached, estimated } = after
  const exact = <T extends Record<string, unknown>>(row: T): T => {
    const copy: Record<string, unknown> = { ...row }
    for (const column of ESTIMATED_TIMES) if (estimated !== null && copy[column] === estimated) copy[column] = now
    return copy as T
  }
  const open = claimed.map(exact)
  return {
    run: exact(run),
    claimed: open,
    tool,
    cached: cached && {
      loaded: { ...exact(cached.loaded), open },
      past: cached.past && {
        ...cached.past,
        rows: cached.past.rows.map(row => (row.completed_at === estimated ? exact(row) : row)),
      },
      readAt: performance.now(),
    },
    estimated: null,
  }
}

type LockedRun = { loaded: LoadedRun | null; driven: DrivenRun | null; readAt: number }

/** Returns a cached run with the time at which its usage was read, otherwise with an estimate of its current time. */
function loadCached({ loaded, readAt }: CachedRun, written: WrittenUsage | null): LockedRun {
  const readNow = performance.now()
  const now = written?.now ?? new Date(Date.parse(loaded.now) + readNow - readAt).toISOString()
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
  const isEstimated = options.cached != null && options.written == null
  const advance = new Advance(services, tx, pinned?.graph ?? EMPTY_GRAPH, loaded, driven, {
    isEstimated,
    past: options.cached?.past?.rows,
    written: options.written?.totals,
  })
  if (options.report && !(await options.report(advance))) return null
  const unrunnable = !pinned ? UNRUNNABLE.gone : pinned.graph.sorted ? null : UNRUNNABLE.cycle
  let continues = false
  if (advance.stopping) await advance.stop('cancelled', null)
  else if (unrunnable) await advance.stop('failed', unrunnable)
  else continues = await advance.proceed({ collectOutcomes, startNode })
  const ended = isRunTerminal(advance.run)
  const ready = ended ? [] : advance.forWorkers.filter(({ status }) => status === 'running')
  const claims = ready.length > 0 ? ((await options.claims?.(advance, ready.length)) ?? 0) : 0
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
  const before = options.cached ? options.cached.past : loaded.steps === 0 ? NO_PAST : null
  const past = before && withEnded(before, advance.ended)
  const isCacheable = !driven && !continues && claimed.length === 1 && canContinueCached(advance, claimed[0], past)
  return {
    run: advance.run,
    claimed,
    tool: null,
    cached: isCacheable ? { loaded: { ...loaded, ...advance.run, open: claimed }, past, readAt } : null,
    estimated: isEstimated ? advance.nowText : null,
  }
}

const NO_PAST: PastExecutions = { rows: [], bytes: 0 }
/** Most node executions that a worker keeps of a cached run, and bytes of their inputs and outputs. */
const MAX_PAST = { rows: 100, bytes: 128 * 1024 }

function withEnded(past: PastExecutions, ended: readonly NodeExecutionRow[]): PastExecutions | null {
  const rows = [...past.rows, ...ended]
  const bytes = ended.reduce((sum, { input, output }) => sum + jsonBytes(input) + jsonBytes(output), past.bytes)
  return rows.length <= MAX_PAST.rows && bytes <= MAX_PAST.bytes ? { rows, bytes } : null
}

/**
 * Whether a node execution is the only active work of the run and is followed by another node, or by an end that needs
 * neither rows of others nor node executions that are not kept: the end of a run is published with all of them.
 */
const canContinueCached = (
  { run, open, graph, children, limits }: Advance,
  { id, node_id }: NodeExecutionRow,
  past: PastExecutions | null,
): boolean =>
  run.status === 'running' &&
  children.size === 0 &&
  [...open.values()].every(row => row.applied || row.id === id) &&
  (!isLastNode(graph, node_id) ||
    (past !== null && limits.max_concurrent_runs === null && run.task_id === null && run.trigger_firing_id === null))

const isLastNode = ({ outgoing }: Graph, id: string): boolean => (outgoing.get(id) ?? []).length === 0

/** Reads what the end of a cached run needs, if the node execution is its last; null otherwise. */
async function readForEnd(
  services: Services,
  { loaded }: CachedRun,
  { node_id }: Pick<ClaimedNode, 'node_id'>,
): Promise<WrittenUsage | null> {
  const pinned = await loadPinnedGraph(services, services.pool, loaded)
  return pinned && isLastNode(pinned.graph, node_id) ? readWrittenUsage(services.pool, loaded) : null
}

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
