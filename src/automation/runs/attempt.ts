import { addActivity } from '../../control/activity/record.ts'
import { addUsage, type UsageDraft } from '../../control/usage/meter.ts'
import { rateUsage } from '../../control/usage/rate.ts'
import { AppError } from '../../core/api/errors.ts'
import { causedBy } from '../../core/db/causation.ts'
import { databaseErrorKind, isTransient } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import type { Tx } from '../../core/db/write.ts'
import { chainOf } from '../../core/iam/caller.ts'
import { Superseded } from '../../core/jobs/attempt.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import type { WorkerType } from '../orchestrations/definition.ts'
import { parseDuration } from '../orchestrations/duration.ts'
import { type Advance, failureOf, isFailure } from './advance.ts'
import { ask } from './approval.ts'
import type { Advanced, Attempt, Called, Finish, Known, Outcome } from './attempt-model.ts'
import { type ExecutionRow, giveBack, renew, type Taken, takenOf } from './attempt-store.ts'
import { pinnedGraph } from './definition.ts'
import { advance, whileKnown } from './go-on.ts'
import { searchKnowledge } from './node-knowledge.ts'
import { writeMemory } from './node-memory.ts'
import { poll } from './node-poll.ts'
import { callTool } from './node-tool.ts'
import { nodeQueue } from './queue.ts'
import { keyOf } from './show.ts'
import { keptArtifact, nodeFailed } from './state.ts'

type Work = (attempt: Attempt, finish: Finish) => Promise<Outcome | Advanced | null>

const WORK: Record<WorkerType, Work> = {
  tool: callTool,
  poll,
  knowledge: searchKnowledge,
  memory_write: writeMemory,
}

/** Whether a project holds no more attempts than it may, one of them that of the caller. */
const mayTakeOver = ({ config }: Services, held: number): boolean => {
  const most = config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  return most === 0 || held <= most
}

/** When an attempt that the database failed is due again. */
const UNAVAILABLE_MS = 1000

/** How long a worker goes on with one run before it lets others have their turn. */
const CHAIN_MS = 1000

/**
 * Makes an attempt that is taken, and then those that follow from it one at a time, for as long as the run has one ready and
 * its turn is not over: what else is ready has messages.
 * @param signal aborted when the worker stops
 */
export async function makeAttempts(
  services: Services,
  { taken: first, known: asFirst }: { taken: Taken; known: Known | null },
  signal: AbortSignal,
  stopping: AbortSignal,
): Promise<void> {
  const until = performance.now() + CHAIN_MS
  let taken: Taken | null = first
  let known = asFirst
  while (taken) {
    const goesOn = () => !stopping.aborted && performance.now() < until
    const made: Taken = taken
    const asKnown: Known | null = known
    const after: Advanced | null = await causedBy(chainOf(made.authority), () =>
      makeAttempt(services, { taken: made, known: asKnown }, signal, goesOn),
    )
    taken = after?.jobs[0] ? takenOf(after.jobs[0], after.run) : null
    known = after?.known ?? null
  }
}

async function makeAttempt(
  services: Services,
  { taken, known }: { taken: Taken; known: Known | null },
  signal: AbortSignal,
  goesOn: () => boolean,
): Promise<Advanced | null> {
  const held = new Lease(services, taken, signal)
  const started = performance.now()
  const used: UsageDraft[] = []
  const ids = { run_id: taken.run_id, node_id: taken.node_id, attempt: taken.attempt, delivery: taken.deliveries }
  const log = (outcome: string, more: object = {}) =>
    services.log.info(
      { ...ids, ...more, outcome, duration_ms: Math.round(performance.now() - started) },
      'node attempt',
    )
  const end = async (tx: Tx, outcome: Outcome | { error: unknown }, from: Known | null = null) => {
    // What calls used is used, whoever has the attempt by now.
    const rated = await rateUsage(services, used, tx)
    addUsage(tx, rated)
    return advance(tx, services, taken.run_id, {
      known: from,
      used: rated,
      report: run =>
        'error' in outcome ? reportFailure(run, taken, outcome.error, started) : report(run, taken, outcome, started),
      // The place of the attempt that ends is free for the one that follows.
      takes: run => (goesOn() && mayTakeOver(services, run.held) ? 1 : 0),
    })
  }
  // What this worker took with a commit whose answer was lost is known by its ids alone.
  const following: Taken[] = []
  const note = (advanced: Advanced | null): Advanced | null => {
    if (advanced) following.push(...advanced.jobs.map(row => takenOf(row, advanced.run)))
    return advanced
  }
  const finish: Finish = async (tx, outcome) => {
    if (held.lost) throw new Superseded()
    return note(await end(tx, outcome))
  }
  const settle = async (outcome: Outcome | { error: unknown }) => {
    const after = await retryWhileUnavailable(
      async () =>
        (known && (await whileKnown(services, known, taken, async tx => note(await end(tx, outcome, known))))) ??
        services.write(async tx => note(await end(tx, outcome))),
      { signal: held.signal },
    )
    if (!after) for (const each of following) await requeueAttempt(services, each)
    return after
  }
  try {
    await fault(services, 'node_taken')
    const outcome = await work(services, taken, held.signal, draft => void used.push(draft), finish)
    if (held.lost) throw new Superseded()
    await fault(services, 'node_called')
    if (outcome && 'run' in outcome) {
      log('completed')
      return outcome
    }
    const after = outcome && (await settle(outcome))
    await fault(services, 'node_finished')
    log(after ? 'completed' : 'superseded')
    return after
  } catch (error) {
    if (signal.aborted || (isTransient(error) && !held.lost)) {
      const delayMs = signal.aborted ? 0 : UNAVAILABLE_MS
      const counted = !signal.aborted && databaseErrorKind(error) === 'timeout'
      for (const each of [taken, ...following]) await requeueAttempt(services, each, { delayMs, counted })
      log('handed_back', { err: signal.aborted ? undefined : error })
      return null
    }
    if (held.lost || error instanceof Superseded) {
      log('superseded')
      return null
    }
    if (!isFailure(error)) services.log.error({ err: error, ...ids }, 'node attempt')
    const after = await settle({ error })
    log('failed', { code: failureOf(error).code })
    return after
  } finally {
    held.end()
  }
}

async function work(
  services: Services,
  taken: Taken,
  signal: AbortSignal,
  use: (draft: UsageDraft) => void,
  finish: Finish,
): Promise<Outcome | Advanced | null> {
  const pinned = await pinnedGraph(services, services.pool, taken)
  const node = pinned?.graph.node(taken.node_id)
  if (!node) throw new AppError('ORCHESTRATION_NOT_FOUND', { meta: { id: taken.orchestration_id } })
  const ms =
    (node.timeout == null ? null : parseDuration(node.timeout)) ?? services.config.ORCHESTRATION_NODE_TIMEOUT_MS
  const late = AbortSignal.timeout(Math.min(ms, 2 ** 31 - 1))
  const both = AbortSignal.any([signal, late])
  const tooLate = nodeFailed(node, 'timeout', 'The attempt took longer than the timeout of the node')
  try {
    const made = WORK[node.type as WorkerType]({ services, node, taken, key: keyOf(taken), signal: both, use }, finish)
    return await Promise.race([made, abortion(both, made)])
  } catch (error) {
    if (late.aborted && !signal.aborted) throw tooLate
    throw error
  }
}

/** Rejects with the signal; what it leaves behind is not heard of any more. */
const abortion = (signal: AbortSignal, made: Promise<unknown>): Promise<never> =>
  new Promise((_resolve, reject) => {
    const aborted = () => {
      made.catch(() => {})
      reject(signal.reason)
    }
    if (signal.aborted) aborted()
    else {
      signal.addEventListener('abort', aborted, { once: true })
      const done = () => signal.removeEventListener('abort', aborted)
      made.then(done, done)
    }
  })

/** Requeues an attempt for another worker, if this one holds it. */
export const requeueAttempt = (
  services: Services,
  taken: Taken,
  { delayMs = 0, counted = false } = {},
): Promise<void> =>
  retryWhileUnavailable(() =>
    services.write(async tx => {
      if (!(await giveBack(tx, taken, counted))) return
      const { id: execution_id, run_id, project_id } = taken
      const startAfter = delayMs > 0 ? { startAfter: new Date(Date.now() + delayMs) } : {}
      tx.send(nodeQueue, { execution_id, run_id, project_id }, startAfter)
    }),
  )

/** The attempt as the run has it, while it is this worker's; null when it is not. */
function ownRow(run: Advance, taken: Taken, started: number): ExecutionRow | null {
  const row = run.open.get(taken.id)
  if (row?.status !== 'running' || row.deliveries !== taken.deliveries || row.polls !== taken.polls) return null
  row.compute_seconds += (performance.now() - started) / 1000
  row.leased_until = null
  row.started_at ??= run.nowText
  run.touch(row)
  return row
}

async function report(run: Advance, taken: Taken, outcome: Outcome, started: number): Promise<boolean> {
  const row = ownRow(run, taken, started)
  if (!row) return false
  const node = run.node(row.node_id)
  try {
    if ('ask' in outcome) await ask(run, row, outcome.ask)
    else if ('again' in outcome) {
      row.polls += 1
      run.run.steps += 1
      if (run.run.steps >= run.services.config.ORCHESTRATION_RUN_MAX_STEPS) throw run.tooManySteps()
      row.status = 'waiting'
      row.parked = true
      row.deliveries = 0
      row.wake_at = run.after(outcome.again.ms)
    } else {
      if (node.type === 'poll') row.polls += 1
      const artifact = keptArtifact(node, outcome.artifact)
      run.hold(node, artifact)
      run.complete(row, { ...outcome, artifact })
      if (outcome.called) noteCall(run, row, outcome.called)
    }
  } catch (error) {
    if (!isFailure(error)) throw error
    run.fail(row, error)
  }
  return true
}

function reportFailure(run: Advance, taken: Taken, error: unknown, started: number): boolean {
  const row = ownRow(run, taken, started)
  if (!row) return false
  if (row.node_type === 'poll') row.polls += 1
  run.fail(row, error)
  return true
}

const noteCall = ({ tx, run }: Advance, { node_id }: ExecutionRow, called: Called): void =>
  addActivity(tx, {
    project_id: run.project_id,
    kind: 'action_executed',
    summary: `${called.tool_name} was called`,
    detail: { ...called, node_id },
    orchestration_run_id: run.id,
    ref_id: called.tool_id,
  })

/** An attempt while it is made: its lease is renewed; the signal is aborted once it is another's, or the run has stopped. */
class Lease {
  readonly signal: AbortSignal
  readonly #lost = new AbortController()
  readonly #timer: NodeJS.Timeout

  constructor(services: Services, taken: Taken, outer: AbortSignal) {
    const leaseMs = services.config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000
    this.signal = AbortSignal.any([outer, this.#lost.signal])
    this.#timer = setInterval(async () => {
      try {
        if (!(await renew(services.pool, taken, leaseMs))) this.#lost.abort(new Error('another worker has the attempt'))
      } catch (error) {
        services.log.warn({ err: error, execution_id: taken.id }, 'lease of a node attempt not renewed')
      }
    }, leaseMs / 3)
  }

  get lost(): boolean {
    return this.#lost.signal.aborted
  }

  end(): void {
    clearInterval(this.#timer)
  }
}
