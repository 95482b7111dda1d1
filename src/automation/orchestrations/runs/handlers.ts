import { randomUUID } from 'node:crypto'
import type { Config } from '#core/base/config.ts'
import { executorLost } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { HOLDER, instanceId } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import type { Fragment } from '#core/db/sql.ts'
import { withSlotHolder } from '#core/net/hanging-calls.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { type AcquiredSlot, handler, type JobContext, RequeueError, schedule } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { controlDescendants } from './commands/control-descendants.ts'
import { removeRuns } from './commands/remove-runs.ts'
import { type Advance, nodeFailure } from './engine/advance.ts'
import { advanceRun } from './engine/advance-run.ts'
import { requireKnownRun } from './engine/context.ts'
import { executeNodes, requeueNodeExecution } from './engine/execute-nodes.ts'
import type { AdvanceResult } from './engine/node-execution.ts'
import {
  type ClaimedNode,
  claimedNode,
  claimNode,
  claimNodeSerialized,
  countLeasesAlone,
  expireNodeLeases,
  findClaimState,
  type NodeExecutionRow,
  releaseNodeClaim,
  requeueNode,
} from './engine/node-execution-store.ts'
import { sweepRuns } from './engine/sweep.ts'
import { lostCallUsage } from './nodes/tool.ts'
import {
  descendantsQueue,
  type NodeMessage,
  nodeExecutionQueue,
  type RunMessage,
  removalQueue,
  runQueue,
  runSweep,
  runWakeQueue,
} from './queue.ts'
import { hasLiveRuns } from './store.ts'

/**
 * The life of a run: `startRun` inserts it and sends `run.advance`. `advanceRun` applies the outcomes of its nodes and
 * calls `startNode` for each node that is ready. A node that workers execute gets a message `node.execute`, or is
 * executed by the same process: `executeNodes` does the work and calls `endNode`, in a transaction that advances the run
 * again. Turns, decisions, approvals and nested runs wake the run when they end (`run.wake`), timers when they are due.
 */

/**
 * Delay before a node execution is claimed again while its project is at capacity. It grows with the age of the
 * execution, so that 1,000 waiting executions cause 400 claims a second.
 */
const CAPACITY_RETRY_MS = { least: 250, most: 2500 }
/**
 * The last slots of a project are claimed one transaction at a time: more slots than processes that may claim
 * concurrently.
 */
const SERIALIZED_SLOTS = 20

/** A run whose worker died during an advance waits no longer than a node execution would. */
const leaseSeconds = (config: Config): number => config.ORCHESTRATION_NODE_LEASE_SECONDS

const graceMs = (config: Config): number | null => config.ORCHESTRATION_SHUTDOWN_GRACE_MS

/** Advances and node executions survive two lost workers, as turns do: a run must not end with the second crash. */
const MAX_LOSSES = 3

/** Wake-ups that are forwarded in one statement. */
const WAKE_BATCH = 100

export const runHandlers = [
  handler(
    runQueue,
    {
      concurrency: config => config.ORCHESTRATION_ADVANCE_CONCURRENCY,
      leaseSeconds,
      graceMs,
      maxLosses: MAX_LOSSES,
      onExhausted: ({ run_id }, error, services) =>
        services.write(tx =>
          advanceRun(tx, services, run_id, {
            report: async advance => {
              await advance.stop('failed', nodeFailure(error))
              return true
            },
          }),
        ),
    },
    handleRunMessage,
  ),
  handler(runWakeQueue, { batch: WAKE_BATCH, concurrency: 1 }, (messages, { services }) =>
    services.queues.send(messages.map(message => queueMessage(runQueue, message))),
  ),
  handler(
    nodeExecutionQueue,
    {
      concurrency: config => config.ORCHESTRATION_WORKER_CONCURRENCY,
      leaseSeconds,
      graceMs,
      maxLosses: MAX_LOSSES,
      onExhausted: (node, error, services) => abandonNodeExecution(services, node, error),
    },
    handleNodeMessage,
  ),
  handler(descendantsQueue, { concurrency: 1, leaseSeconds, graceMs }, controlDescendants),
  handler(removalQueue, { concurrency: 1, leaseSeconds, graceMs }, removeRuns),
  handler(runSweep, { concurrency: 1 }, ({ all }, context) => sweepRuns(context, all)),
]

const sweepSeconds = (config: Config): number => Math.ceil(config.ORCHESTRATION_SCHEDULER_INTERVAL_MS / 1000)
/** Waiting runs, which may be many, are checked by every sixth sweep only. */
const ALL_EVERY = 6

export const runSchedules = [
  schedule('run.sweep', sweepSeconds, runSweep, { all: false }, hasLiveRuns),
  schedule('run.sweep all', config => ALL_EVERY * sweepSeconds(config), runSweep, { all: true }, hasLiveRuns),
]

/** Advances a run; executes nodes that became ready in this process if slots are free. */
async function handleRunMessage({ run_id }: RunMessage, context: JobContext): Promise<void> {
  const { services, signal, stopping } = context
  const slots: AcquiredSlot[] = []
  const uncommitted: { result: AdvanceResult | null } = { result: null }
  const executedHere = (advance: Advance, ready: number): number | Promise<number> => {
    if (stopping.aborted || !hasAmpleCapacity(services, advance.projectLeases)) return 0
    while (slots.length < ready) {
      const slot = context.tryAcquireSlot(nodeExecutionQueue, advance.project_id)
      if (!slot) break
      slots.push(slot)
    }
    return slots.length > 1 ? claimableTogether(advance, slots.length) : slots.length
  }
  try {
    const after = await services.write(async tx => {
      const advanced = await advanceRun(tx, services, run_id, {
        report: async () => {
          await injectFault(services, 'run_locked')
          return true
        },
        claims: executedHere,
      })
      uncommitted.result = advanced
      await injectFault(services, 'run_advanced', () => run_id)
      context.complete(tx)
      return advanced
    })
    await injectFault(services, 'run_committed')
    const claimed = after?.claimed ?? []
    for (const slot of slots.splice(claimed.length)) slot.release()
    if (!after || claimed.length === 0) return
    const execute = async (row: NodeExecutionRow) => {
      const slot = slots.shift() as AcquiredSlot
      try {
        const first = { execution: claimedNode(row, after.run), cached: after.cached }
        await withSlotHolder(slot.holder, () => executeNodes(services, first, signal, stopping))
      } catch (error) {
        services.log.error({ err: error, run_id }, 'run attempts exhausted')
      } finally {
        slot.release()
      }
    }
    await context.releaseSlotWhile(() => Promise.all(claimed.map(execute)))
  } catch (error) {
    // The commit may have succeeded although its response was lost: the executions that it claimed are requeued.
    const { result } = uncommitted
    if (isTransient(error) && result)
      for (const row of result.claimed) await requeueNodeExecution(services, claimedNode(row, result.run))
    throw error
  } finally {
    for (const slot of slots) slot.release()
  }
}

/** Returns how many of several ready node executions one transaction may claim. */
async function claimableTogether({ tx, services, project_id }: Advance, ready: number): Promise<number> {
  const limit = services.config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  if (limit === 0) return ready
  const leases = await countLeasesAlone(tx, project_id)
  if (leases === null) return 1
  return hasAmpleCapacity(services, leases) ? Math.min(ready, Math.max(1, limit - SERIALIZED_SLOTS - leases)) : 0
}

/** Executes a ready node, unless another worker has claimed it. */
async function handleNodeMessage(
  node: NodeMessage,
  { services, signal, stopping, retryIn }: JobContext,
): Promise<void> {
  const { config, pool } = services
  const execution = await claimWithinCapacity(services, node, signal)
  if (execution) {
    await requireKnownExecution(services, execution)
    await executeNodes(services, { execution, cached: null }, signal, stopping)
    if (signal.aborted) throw new RequeueError('the worker is shutting down')
    return
  }
  const waiting = await findClaimState(pool, node.execution_id)
  if (!waiting || waiting.leased) return
  if (waiting.deliveries >= config.ORCHESTRATION_NODE_MAX_DELIVERIES)
    await abandonNodeExecution(services, node, executorLost())
  // The project is at capacity.
  else {
    const ms = Math.min(Math.max(waiting.age_ms / 4, CAPACITY_RETRY_MS.least), CAPACITY_RETRY_MS.most)
    retryIn(ms * (0.75 + Math.random() / 2))
    throw new RequeueError('the project is at its limit of concurrent node executions')
  }
}

/**
 * Checks that this release can execute a claimed node; otherwise ends the claim without counting the delivery.
 * @throws NewerFormatError
 */
async function requireKnownExecution(services: Services, execution: ClaimedNode): Promise<void> {
  try {
    requireKnownRun(services, { ...execution, id: execution.run_id })
  } catch (error) {
    await retryWhileUnavailable(() => requeueNode(services.pool, execution))
    throw error
  }
}

const hasAmpleCapacity = ({ config }: Services, leases: number): boolean => {
  const limit = config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  return limit === 0 || leases + SERIALIZED_SLOTS <= limit
}

/** Claims a node execution if its project has a free slot. */
async function claimWithinCapacity(
  services: Services,
  { execution_id: id, project_id }: NodeMessage,
  signal: AbortSignal,
): Promise<ClaimedNode | null> {
  const { config, pool } = services
  const limit = config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  const holder = `${HOLDER}:${randomUUID()}`
  const claim = {
    holder,
    instanceId: instanceId(config, 'worker'),
    leaseMs: config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000,
    deliveries: config.ORCHESTRATION_NODE_MAX_DELIVERIES,
  }
  try {
    if (limit === 0) return await claimNode(pool, id, { ...claim, projectLimit: limit })
    const free =
      limit > SERIALIZED_SLOTS ? await claimNode(pool, id, { ...claim, projectLimit: limit - SERIALIZED_SLOTS }) : null
    return (
      free ??
      (await services.write(tx => claimNodeSerialized(tx, { id, project_id }, { ...claim, projectLimit: limit })))
    )
  } catch (error) {
    // It may have been committed although its answer was lost, and would block the repeated message until its lease ends.
    if (isTransient(error)) await retryWhileUnavailable(() => releaseNodeClaim(pool, id, holder), { signal })
    throw error
  }
}

/** Fails a node execution that lost all its workers or could not be claimed. */
const abandonNodeExecution = (services: Services, { execution_id, run_id }: NodeMessage, error: unknown) =>
  services.write(tx =>
    advanceRun(tx, services, run_id, {
      report: async advance => {
        const row = advance.open.get(execution_id)
        if (row?.status !== 'running' || (row.leased_until !== null && !advance.isPast(row.leased_until))) return false
        const used = row.deliveries > 0 ? await lostCallUsage(tx, advance.run, row, advance.node(row.node_id)) : null
        if (used) advance.addUsage(used)
        advance.fail(row, error)
        return true
      },
    }),
  )

/** Requeues the node executions of processes that are gone. */
export async function requeueOrphanedNodes(tx: Tx, isGone: (holder: Fragment) => Fragment): Promise<void> {
  for (const { id: execution_id, run_id, project_id } of await expireNodeLeases(tx, isGone))
    tx.send(nodeExecutionQueue, { execution_id, run_id, project_id })
}
