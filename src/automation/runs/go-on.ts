import type { Rated } from '../../control/usage/rate.ts'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { causedBy } from '../../core/db/causation.ts'
import { NeedsTransaction, type Tx, withoutTransaction } from '../../core/db/write.ts'
import { chainOf } from '../../core/iam/caller.ts'
import { HOLDER } from '../../core/process/holder.ts'
import type { Services } from '../../core/process/services.ts'
import type { Graph } from '../orchestrations/graph.ts'
import { Advance } from './advance.ts'
import type { Advanced, Known } from './attempt-model.ts'
import type { ExecutionRow, Taken } from './attempt-store.ts'
import { begin } from './begin.ts'
import { pinnedGraph } from './definition.ts'
import { type Driven, driverOf } from './driver.ts'
import { look } from './look.ts'
import { hasEnded } from './model.ts'
import { nodeQueue } from './queue.ts'
import { type Loaded, loadRun, unchanged } from './store.ts'

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
  used?: readonly Rated[]
  /** The run, where the caller knows it and writes nothing unless it is still so. */
  known?: Known | null
}

/**
 * Goes on with a run as far as its rows allow.
 * @returns null when the run is gone, has ended, or was left
 */
export async function advance(
  tx: Tx,
  services: Services,
  runId: string,
  options: Options = {},
): Promise<Advanced | null> {
  const { loaded, driven, readAt } = options.known ? still(options.known) : await loadWithRecords(tx, services, runId)
  if (!loaded || hasEnded(loaded)) return null
  return causedBy(chainOf(loaded.authority), () => advanceLoaded(tx, services, { loaded, driven, readAt }, options))
}

/**
 * Does work that advances a run whose attempt the caller made, in one statement, while nobody else has changed the run.
 * Null where somebody has or the attempt is another's, where the project is paused by now, and where the work needs more
 * than what is known: nothing is written then.
 */
export async function whileKnown(
  services: Services,
  known: Known,
  taken: Taken,
  work: (tx: Tx) => Promise<Advanced | null>,
): Promise<Advanced | null> {
  let after: Advanced | null = null
  try {
    const { held, now } = await services.writeOne<{ now: string }>(async outgoing => {
      after = await work(withoutTransaction(outgoing))
      if (!after) throw new NeedsTransaction()
      return unchanged(known.loaded, taken)
    })
    return held ? at(now, after as Advanced | null) : null
  } catch (error) {
    if (error instanceof NeedsTransaction) return null
    throw error
  }
}

/** What an advance has left, with the time of its statement where it stands with the one that it reckoned with. */
function at(now: string, after: Advanced | null): Advanced | null {
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

type Held = { loaded: Loaded | null; driven: Driven | null; readAt: number }

/** A run that is known, at the time that it is. */
function still({ loaded, readAt }: Known): Held {
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
  { loaded, driven, readAt }: Held & { loaded: Loaded },
  options: Options,
): Promise<Advanced | null> {
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
  else more = await made.work({ look, begin })
  const ended = hasEnded(made.run)
  const jobs = ended ? [] : made.jobs.filter(({ status }) => status === 'running')
  const takes = jobs.length > 0 ? (options.takes?.(made) ?? 0) : 0
  const lease = services.config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000
  for (const [index, row] of jobs.entries()) {
    if (index < takes) {
      row.deliveries += 1
      row.leased_until = made.after(lease)
      row.holder = HOLDER
      row.started_at ??= made.nowText
    } else tx.send(nodeQueue, { execution_id: row.id, ...made.message })
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
const goesOnAlone = ({ run, open, graph, children }: Advance, { id, node_id }: ExecutionRow): boolean =>
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
