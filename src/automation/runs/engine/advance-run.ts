import type { PricedUsage } from '../../../control/usage/price-usage.ts'
import type { RecordedFailure } from '../../../core/api/errors.ts'
import { withTriggerChain } from '../../../core/db/trigger-chain.ts'
import { statementOnlyTx, TransactionRequired, type Tx } from '../../../core/db/writer.ts'
import { triggerChainOf } from '../../../core/iam/caller.ts'
import { HOLDER } from '../../../core/process/holder.ts'
import type { Services } from '../../../core/process/services.ts'
import type { Graph } from '../../orchestrations/graph.ts'
import { isRunTerminal } from '../model.ts'
import { nodeExecutionQueue } from '../queue.ts'
import { type LoadedRun, loadRun, revisionUnchanged } from '../store.ts'
import { Advance } from './advance.ts'
import { collectOutcomes } from './collect-outcomes.ts'
import { type DrivenRun, driverOf } from './driver.ts'
import type { AdvanceResult, CachedRun } from './node-execution.ts'
import type { ClaimedNode, NodeExecutionRow } from './node-execution-store.ts'
import { pinnedGraph } from './pinned-graph.ts'
import { startNode } from './start-node.ts'

/** Failures that end a run whose graph cannot be executed at all. */
const UNRUNNABLE = {
  gone: { code: 'ORCHESTRATION_NOT_FOUND', message: 'The version of the orchestration is gone' },
  cycle: { code: 'ORCHESTRATION_CYCLE_DETECTED', message: 'The graph has a cycle' },
} satisfies Record<string, RecordedFailure>

type Options = {
  /**
   * What has happened beside the rows, for example the end of an attempt that the caller made; false leaves the run as it is.
   */
  report?: (advance: Advance) => boolean | Promise<boolean>
  /** How many of the attempts that begin the caller makes itself: they count as taken and have no message. */
  takes?: (advance: Advance) => number
  /** What the caller has used for the run, and writes with it. */
  used?: readonly PricedUsage[]
  /** The run, where the caller knows it and writes nothing unless it is still so. */
  known?: CachedRun | null
}

/**
 * Goes on with a run as far as its rows allow.
 * @returns null when the run is gone, has ended, or was left
 */
export async function advanceRun(
  tx: Tx,
  services: Services,
  runId: string,
  options: Options = {},
): Promise<AdvanceResult | null> {
  const { loaded, driven, readAt } = options.known ? still(options.known) : await loadWithRecords(tx, services, runId)
  if (!loaded || isRunTerminal(loaded)) return null
  return withTriggerChain(triggerChainOf(loaded.authority), () =>
    advanceLoaded(tx, services, { loaded, driven, readAt }, options),
  )
}

/**
 * Does work that advances a run whose attempt the caller made, in one statement, while nobody else has changed the run.
 * Null where somebody has or the attempt is another's, where the project is paused by now, and where the work needs more
 * than what is known: nothing is written then.
 */
export async function advanceIfUnchanged(
  services: Services,
  known: CachedRun,
  taken: ClaimedNode,
  work: (tx: Tx) => Promise<AdvanceResult | null>,
): Promise<AdvanceResult | null> {
  let after: AdvanceResult | null = null
  try {
    const { held, now } = await services.writeOne<{ now: string }>(async outgoing => {
      after = await work(statementOnlyTx(outgoing))
      if (!after) throw new TransactionRequired()
      return revisionUnchanged(known.loaded, taken)
    })
    return held ? at(now, after as AdvanceResult | null) : null
  } catch (error) {
    if (error instanceof TransactionRequired) return null
    throw error
  }
}

/** What an advance has left, with the time of its statement where it stands with the one that it reckoned with. */
function at(now: string, after: AdvanceResult | null): AdvanceResult | null {
  if (!after) return null
  const { run, jobs, known, estimated } = after
  const exact = <T extends object>(row: T): T =>
    Object.fromEntries(Object.entries(row).map(([key, value]) => [key, value === estimated ? now : value])) as T
  const open = jobs.map(exact)
  return {
    run: exact(run),
    jobs: open,
    known: known && { loaded: { ...exact(known.loaded), open }, readAt: performance.now() },
    estimated: null,
  }
}

type Held = { loaded: LoadedRun | null; driven: DrivenRun | null; readAt: number }

/** A run that is known, at the time that it is. */
function still({ loaded, readAt }: CachedRun): Held {
  const readNow = performance.now()
  const now = new Date(Date.parse(loaded.now) + readNow - readAt).toISOString()
  return { loaded: { ...loaded, now, open: loaded.open.map(row => ({ ...row })) }, driven: null, readAt: readNow }
}

/** A run under its lock, which comes behind those of what drives it. */
async function loadWithRecords(tx: Tx, services: Services, runId: string): Promise<Held> {
  const loaded = await loadRun(tx, runId)
  if (loaded) return { loaded, driven: null, readAt: performance.now() }
  const driver = await driverOf(tx, runId)
  const driven = driver ? await driver.open(tx, services, runId) : null
  return { loaded: driven && (await loadRun(tx, runId, true)), driven, readAt: performance.now() }
}

async function advanceLoaded(
  tx: Tx,
  services: Services,
  { loaded, driven, readAt }: Held & { loaded: LoadedRun },
  options: Options,
): Promise<AdvanceResult | null> {
  const pinned = await pinnedGraph(services, tx, loaded)
  const made = new Advance(services, tx, pinned?.graph ?? EMPTY, loaded, driven, {
    used: options.used,
    isEstimated: options.known != null,
  })
  if (options.report && !(await options.report(made))) return null
  const unrunnable = !pinned ? UNRUNNABLE.gone : pinned.graph.sorted ? null : UNRUNNABLE.cycle
  let more = false
  if (made.stopping) await made.stop('cancelled', null)
  else if (unrunnable) await made.stop('failed', unrunnable)
  else more = await made.work({ look: collectOutcomes, begin: startNode })
  const ended = isRunTerminal(made.run)
  const jobs = ended ? [] : made.jobs.filter(({ status }) => status === 'running')
  const takes = jobs.length > 0 ? (options.takes?.(made) ?? 0) : 0
  const lease = services.config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000
  for (const [index, row] of jobs.entries()) {
    if (index < takes) {
      row.deliveries += 1
      row.leased_until = made.after(lease)
      row.holder = HOLDER
      row.started_at ??= made.nowText
    } else tx.send(nodeExecutionQueue, { execution_id: row.id, ...made.message })
    made.touch(row)
  }
  await made.save(more)
  const mine = jobs.slice(0, takes)
  const known = !driven && !more && mine.length === 1 && goesOnAlone(made, mine[0])
  return {
    run: made.run,
    jobs: mine,
    known: known ? { loaded: { ...loaded, ...made.run, open: mine }, readAt } : null,
    estimated: options.known ? made.nowText : null,
  }
}

/** Whether an attempt is all that a run has under way, and what follows from it is not its end, which is told in full. */
const goesOnAlone = ({ run, open, graph, children }: Advance, { id, node_id }: NodeExecutionRow): boolean =>
  run.status === 'running' &&
  children.size === 0 &&
  [...open.values()].every(row => row.applied || row.id === id) &&
  (graph.outgoing.get(node_id) ?? []).length > 0

const EMPTY: Graph = {
  nodes: [],
  order: new Map(),
  node: () => undefined,
  starts: [],
  incoming: new Map(),
  outgoing: new Map(),
  back: new Set(),
  sorted: [],
}
