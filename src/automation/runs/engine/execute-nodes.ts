import { recordActivityInTx } from '../../../control/activity/record.ts'
import { recordUsageInTx, type UsageDraft } from '../../../control/usage/meter.ts'
import { priceUsage } from '../../../control/usage/price-usage.ts'
import { AppError } from '../../../core/api/errors.ts'
import { databaseErrorKind, isTransient } from '../../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../../core/db/retry.ts'
import { withTriggerChain } from '../../../core/db/trigger-chain.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { triggerChainOf } from '../../../core/iam/caller.ts'
import { ClaimLostError } from '../../../core/jobs/work-item.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import type { Services } from '../../../core/process/services.ts'
import type { WorkerType } from '../../orchestrations/definition.ts'
import { parseDuration } from '../../orchestrations/duration.ts'
import { fileApproval } from '../nodes/approval.ts'
import { runKnowledgeNode } from '../nodes/knowledge.ts'
import { runMemoryNode } from '../nodes/memory.ts'
import { pollNode } from '../nodes/poll.ts'
import { callNodeTool } from '../nodes/tool.ts'
import { nodeExecutionQueue } from '../queue.ts'
import { idempotencyKeyOf } from '../reads/present-run.ts'
import { type Advance, isFailure, nodeFailure } from './advance.ts'
import { advanceIfUnchanged, advanceRun } from './advance-run.ts'
import type {
  AdvanceResult,
  Attempt,
  CachedRun,
  NodeAttemptOutcome,
  SettleInTx,
  SuccessfulToolCall,
} from './node-execution.ts'
import {
  type ClaimedNode,
  claimedNode,
  type NodeExecutionRow,
  renewLease,
  requeueNode,
} from './node-execution-store.ts'
import { pinnedGraph } from './pinned-graph.ts'
import { nodeFailed, storableArtifact } from './run-state.ts'

type Work = (attempt: Attempt, finish: SettleInTx) => Promise<NodeAttemptOutcome | AdvanceResult | null>

const WORK: Record<WorkerType, Work> = {
  tool: callNodeTool,
  poll: pollNode,
  knowledge: runKnowledgeNode,
  memory_write: runMemoryNode,
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
  { taken: first, known: asFirst }: { taken: ClaimedNode; known: CachedRun | null },
  signal: AbortSignal,
  stopping: AbortSignal,
): Promise<void> {
  const until = performance.now() + CHAIN_MS
  let taken: ClaimedNode | null = first
  let known = asFirst
  while (taken) {
    const goesOn = () => !stopping.aborted && performance.now() < until
    const made: ClaimedNode = taken
    const asKnown: CachedRun | null = known
    const after: AdvanceResult | null = await withTriggerChain(triggerChainOf(made.authority), () =>
      makeAttempt(services, { taken: made, known: asKnown }, signal, goesOn),
    )
    taken = after?.jobs[0] ? claimedNode(after.jobs[0], after.run) : null
    known = after?.known ?? null
  }
}

async function makeAttempt(
  services: Services,
  { taken, known }: { taken: ClaimedNode; known: CachedRun | null },
  signal: AbortSignal,
  goesOn: () => boolean,
): Promise<AdvanceResult | null> {
  const held = new Lease(services, taken, signal)
  const started = performance.now()
  const used: UsageDraft[] = []
  const ids = { run_id: taken.run_id, node_id: taken.node_id, attempt: taken.attempt, delivery: taken.deliveries }
  const log = (outcome: string, more: object = {}) =>
    services.log.info(
      { ...ids, ...more, outcome, duration_ms: Math.round(performance.now() - started) },
      'node attempt',
    )
  const end = async (tx: Tx, outcome: NodeAttemptOutcome | { error: unknown }, from: CachedRun | null = null) => {
    // What calls used is used, whoever has the attempt by now.
    const rated = await priceUsage(services, used, tx)
    recordUsageInTx(tx, rated)
    return advanceRun(tx, services, taken.run_id, {
      known: from,
      used: rated,
      report: run =>
        'error' in outcome ? reportFailure(run, taken, outcome.error, started) : report(run, taken, outcome, started),
      // The place of the attempt that ends is free for the one that follows.
      takes: run => (goesOn() && mayTakeOver(services, run.held) ? 1 : 0),
    })
  }
  // What this worker took with a commit whose answer was lost is known by its ids alone.
  const following: ClaimedNode[] = []
  const note = (advanced: AdvanceResult | null): AdvanceResult | null => {
    if (advanced) following.push(...advanced.jobs.map(row => claimedNode(row, advanced.run)))
    return advanced
  }
  const finish: SettleInTx = async (tx, outcome) => {
    if (held.lost) throw new ClaimLostError()
    return note(await end(tx, outcome))
  }
  const settle = async (outcome: NodeAttemptOutcome | { error: unknown }) => {
    const after = await retryWhileUnavailable(
      async () =>
        (known &&
          (await advanceIfUnchanged(services, known, taken, async tx => note(await end(tx, outcome, known))))) ??
        services.write(async tx => note(await end(tx, outcome))),
      { signal: held.signal },
    )
    if (!after) for (const each of following) await requeueAttempt(services, each)
    return after
  }
  try {
    await injectFault(services, 'node_taken')
    const outcome = await work(services, taken, held.signal, draft => void used.push(draft), finish)
    if (held.lost) throw new ClaimLostError()
    await injectFault(services, 'node_called')
    if (outcome && 'run' in outcome) {
      log('completed')
      return outcome
    }
    const after = outcome && (await settle(outcome))
    await injectFault(services, 'node_finished')
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
    if (held.lost || error instanceof ClaimLostError) {
      log('superseded')
      return null
    }
    if (!isFailure(error)) services.log.error({ err: error, ...ids }, 'node attempt')
    const after = await settle({ error })
    log('failed', { code: nodeFailure(error).code })
    return after
  } finally {
    held.end()
  }
}

async function work(
  services: Services,
  taken: ClaimedNode,
  signal: AbortSignal,
  use: (draft: UsageDraft) => void,
  finish: SettleInTx,
): Promise<NodeAttemptOutcome | AdvanceResult | null> {
  const pinned = await pinnedGraph(services, services.pool, taken)
  const node = pinned?.graph.node(taken.node_id)
  if (!node) throw new AppError('ORCHESTRATION_NOT_FOUND', { meta: { id: taken.orchestration_id } })
  const ms =
    (node.timeout == null ? null : parseDuration(node.timeout)) ?? services.config.ORCHESTRATION_NODE_TIMEOUT_MS
  const late = AbortSignal.timeout(Math.min(ms, 2 ** 31 - 1))
  const both = AbortSignal.any([signal, late])
  const tooLate = nodeFailed(node, 'timeout', 'The attempt took longer than the timeout of the node')
  try {
    const made = WORK[node.type as WorkerType](
      { services, node, taken, key: idempotencyKeyOf(taken), signal: both, use },
      finish,
    )
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
  taken: ClaimedNode,
  { delayMs = 0, counted = false } = {},
): Promise<void> =>
  retryWhileUnavailable(() =>
    services.write(async tx => {
      if (!(await requeueNode(tx, taken, counted))) return
      const { id: execution_id, run_id, project_id } = taken
      const startAfter = delayMs > 0 ? { startAfter: new Date(Date.now() + delayMs) } : {}
      tx.send(nodeExecutionQueue, { execution_id, run_id, project_id }, startAfter)
    }),
  )

/** The attempt as the run has it, while it is this worker's; null when it is not. */
function ownRow(run: Advance, taken: ClaimedNode, started: number): NodeExecutionRow | null {
  const row = run.open.get(taken.id)
  if (row?.status !== 'running' || row.deliveries !== taken.deliveries || row.polls !== taken.polls) return null
  row.compute_seconds += (performance.now() - started) / 1000
  row.leased_until = null
  row.started_at ??= run.nowText
  run.touch(row)
  return row
}

async function report(
  run: Advance,
  taken: ClaimedNode,
  outcome: NodeAttemptOutcome,
  started: number,
): Promise<boolean> {
  const row = ownRow(run, taken, started)
  if (!row) return false
  const node = run.node(row.node_id)
  try {
    if ('ask' in outcome) await fileApproval(run, row, outcome.ask)
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
      const artifact = storableArtifact(node, outcome.artifact)
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

function reportFailure(run: Advance, taken: ClaimedNode, error: unknown, started: number): boolean {
  const row = ownRow(run, taken, started)
  if (!row) return false
  if (row.node_type === 'poll') row.polls += 1
  run.fail(row, error)
  return true
}

const noteCall = ({ tx, run }: Advance, { node_id }: NodeExecutionRow, called: SuccessfulToolCall): void =>
  recordActivityInTx(tx, {
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

  constructor(services: Services, taken: ClaimedNode, outer: AbortSignal) {
    const leaseMs = services.config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000
    this.signal = AbortSignal.any([outer, this.#lost.signal])
    this.#timer = setInterval(async () => {
      try {
        if (!(await renewLease(services.pool, taken, leaseMs)))
          this.#lost.abort(new Error('another worker has the attempt'))
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
