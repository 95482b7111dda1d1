import type { RecordedFailure } from '../../core/api/errors.ts'
import { causedBy } from '../../core/db/causation.ts'
import type { Tx } from '../../core/db/write.ts'
import { chainOf } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import type { Graph } from '../orchestrations/graph.ts'
import { Advance } from './advance.ts'
import type { Advanced } from './attempt-model.ts'
import { begin } from './begin.ts'
import { pinnedGraph } from './definition.ts'
import { type Driven, driverOf } from './driver.ts'
import { look } from './look.ts'
import { hasEnded } from './model.ts'
import { nodeQueue } from './queue.ts'
import { type Loaded, loadRun } from './store.ts'

/** Failures that end a run whose graph cannot be executed at all. */
const UNRUNNABLE = {
  gone: { code: 'ORCHESTRATION_NOT_FOUND', message: 'The version of the orchestration is gone' },
  cycle: { code: 'ORCHESTRATION_CYCLE_DETECTED', message: 'The graph has a cycle' },
} satisfies Record<string, RecordedFailure>

/**
 * Goes on with a run as far as its rows allow.
 * @param report what has happened beside the rows, for example the end of an attempt that the caller made; false leaves the
 *   run as it is
 * @param takes how many of the attempts that begin the caller makes itself: they count as taken and have no message
 * @returns null when the run is gone, has ended, or was left
 */
export async function advance(
  tx: Tx,
  services: Services,
  runId: string,
  options: {
    report?: (advance: Advance) => boolean | Promise<boolean>
    takes?: (advance: Advance) => number
  } = {},
): Promise<Advanced | null> {
  const { loaded, driven } = await loadWithRecords(tx, services, runId)
  if (!loaded || hasEnded(loaded)) return null
  return causedBy(chainOf(loaded.authority), () => advanceLoaded(tx, services, loaded, driven, options))
}

type Held = { loaded: Loaded | null; driven: Driven | null }

/** A run under its lock, which comes behind those of what drives it. */
async function loadWithRecords(tx: Tx, services: Services, runId: string): Promise<Held> {
  const loaded = await loadRun(tx, runId)
  if (loaded) return { loaded, driven: null }
  const driver = await driverOf(tx, runId)
  const driven = driver ? await driver.open(tx, services, runId) : null
  return { loaded: driven && (await loadRun(tx, runId, true)), driven }
}

async function advanceLoaded(
  tx: Tx,
  services: Services,
  loaded: Loaded,
  driven: Driven | null,
  options: Parameters<typeof advance>[3] = {},
): Promise<Advanced | null> {
  const pinned = await pinnedGraph(services, tx, loaded)
  const made = new Advance(services, tx, pinned?.graph ?? EMPTY, loaded, driven)
  if (options.report && !(await options.report(made))) return null
  const unrunnable = !pinned ? UNRUNNABLE.gone : pinned.graph.sorted ? null : UNRUNNABLE.cycle
  let more = false
  if (unrunnable) await made.stop('failed', unrunnable)
  else more = await made.work({ look, begin })
  const ended = hasEnded(made.run)
  const jobs = ended ? [] : made.jobs.filter(({ status }) => status === 'running')
  const takes = options.takes?.(made) ?? 0
  const lease = services.config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000
  for (const [index, row] of jobs.entries()) {
    if (index < takes) {
      row.deliveries += 1
      row.leased_until = made.after(lease)
      row.started_at ??= made.nowText
    } else tx.send(nodeQueue, { execution_id: row.id, ...made.message })
    made.touch(row)
  }
  await made.save(more)
  return { run: made.run, jobs: jobs.slice(0, takes) }
}

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
