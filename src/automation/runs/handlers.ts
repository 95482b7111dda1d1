import type { Config } from '../../config.ts'
import { recordUsage } from '../../control/usage/meter.ts'
import { AppError } from '../../core/api/errors.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import type { Fragment } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { handler, type JobContext, RequeueError, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { followAbove } from './commands/below.ts'
import { removeRuns } from './commands/removal.ts'
import { type Advance, nodeFailure } from './engine/advance.ts'
import { advanceRun } from './engine/advance-run.ts'
import { makeAttempts, requeueAttempt } from './engine/execute-nodes.ts'
import type { AdvanceResult } from './engine/node-execution.ts'
import {
  type ClaimedNode,
  claimedNode,
  claimNode,
  claimNodeSerialized,
  expireNodeLeases,
  findWaiting,
} from './engine/node-execution-store.ts'
import { sweepRuns } from './engine/sweep.ts'
import { lostNodeCall } from './nodes/tool.ts'
import {
  belowQueue,
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
 * A message whose project makes as many attempts as it may is looked at again so much later: the more rarely the longer it
 * has waited, so that a thousand of them are 400 looks a second.
 */
const FULL_MS = { least: 250, most: 2500 }
/** Places of a project that are given one after the other: more than those who may look at them at once. */
const LAST_PLACES = 20

/** A run whose worker died in the midst of an advance waits no longer than an attempt would. */
const leaseSeconds = (config: Config): number => config.ORCHESTRATION_NODE_LEASE_SECONDS

const graceMs = (config: Config): number | null => config.ORCHESTRATION_SHUTDOWN_GRACE_MS

/** Wake-ups that are passed on at once. */
const TOLD = 100

export const runHandlers = [
  handler(
    runQueue,
    {
      concurrency: config => config.ORCHESTRATION_ADVANCE_CONCURRENCY,
      leaseSeconds,
      graceMs,
      onExhausted: ({ run_id }, error, services) =>
        services.write(tx =>
          advanceRun(tx, services, run_id, {
            report: async run => {
              await run.stop('failed', nodeFailure(error))
              return true
            },
          }),
        ),
    },
    handleRun,
  ),
  handler(runWakeQueue, { batch: TOLD, concurrency: 1 }, (told, { services }) =>
    services.queues.send(told.map(each => queueMessage(runQueue, each))),
  ),
  handler(
    nodeExecutionQueue,
    {
      concurrency: config => config.ORCHESTRATION_WORKER_CONCURRENCY,
      leaseSeconds,
      graceMs,
      onExhausted: (node, error, services) => giveUp(services, node, error),
    },
    handleNode,
  ),
  handler(belowQueue, { concurrency: 1, leaseSeconds, graceMs }, followAbove),
  handler(removalQueue, { concurrency: 1, leaseSeconds, graceMs }, removeRuns),
  handler(runSweep, { concurrency: 1 }, ({ all }, context) => sweepRuns(context, all)),
]

const sweepSeconds = (config: Config): number => Math.ceil(config.ORCHESTRATION_SCHEDULER_INTERVAL_MS / 1000)
/** Runs that wait, of which there may be many, are looked through at every sixth sweep. */
const ALL_EVERY = 6

/** Where nothing runs or waits a sweep is one look, and no message. */

export const runSchedules = [
  schedule('run.sweep', sweepSeconds, runSweep, { all: false }, hasLiveRuns),
  schedule('run.sweep all', config => ALL_EVERY * sweepSeconds(config), runSweep, { all: true }, hasLiveRuns),
]

/** Advances a run; an attempt that begins with it is made at once where this process has room. */
async function handleRun({ run_id }: RunMessage, context: JobContext): Promise<void> {
  const { services, signal, stopping } = context
  const slot: { giveBack: (() => void) | null } = { giveBack: null }
  const made: { after: AdvanceResult | null } = { after: null }
  const mayTake = ({ held, run }: Advance): boolean => {
    if (stopping.aborted || !isFarFromFull(services, held)) return false
    slot.giveBack ??= context.tryAcquireSlot(nodeExecutionQueue, run.project_id)
    return slot.giveBack !== null
  }
  try {
    const after = await services.write(async tx => {
      const advanced = await advanceRun(tx, services, run_id, {
        report: async () => {
          await injectFault(services, 'run_locked')
          return true
        },
        takes: run => (mayTake(run) ? 1 : 0),
      })
      made.after = advanced
      await injectFault(services, 'run_advanced')
      context.complete(tx)
      return advanced
    })
    await injectFault(services, 'run_committed')
    const [first] = after?.jobs ?? []
    if (after && first)
      await context
        .releaseSlotWhile(() =>
          makeAttempts(services, { taken: claimedNode(first, after.run), known: after.known }, signal, stopping),
        )
        .catch(error => services.log.error({ err: error, run_id }, 'attempts of a run given up'))
  } catch (error) {
    // Its answer was lost; what it took, if it was committed, is for another worker.
    const { after } = made
    if (isTransient(error) && after)
      for (const row of after.jobs) await requeueAttempt(services, claimedNode(row, after.run))
    throw error
  } finally {
    slot.giveBack?.()
  }
}

/** Makes an attempt that is ready, unless another worker has it. */
async function handleNode(node: NodeMessage, { services, signal, stopping, retryIn }: JobContext): Promise<void> {
  const { config, pool } = services
  const taken = await takeAttempt(services, node)
  if (taken) {
    await makeAttempts(services, { taken, known: null }, signal, stopping)
    if (signal.aborted) throw new RequeueError('the worker stops')
    return
  }
  const waiting = await findWaiting(pool, node.execution_id)
  if (!waiting || waiting.held) return
  if (waiting.deliveries >= config.ORCHESTRATION_NODE_MAX_DELIVERIES)
    await giveUp(services, node, new AppError('INTERNAL_ERROR'))
  // The project makes as many attempts as it may.
  else {
    const ms = Math.min(Math.max(waiting.age_ms / 4, FULL_MS.least), FULL_MS.most)
    retryIn(ms * (0.75 + Math.random() / 2))
    throw new RequeueError('the project makes as many attempts as it may')
  }
}

const isFarFromFull = ({ config }: Services, held: number): boolean => {
  const most = config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  return most === 0 || held + LAST_PLACES <= most
}

/** Takes an attempt where its project has a place for it. */
async function takeAttempt(
  services: Services,
  { execution_id: id, project_id }: NodeMessage,
): Promise<ClaimedNode | null> {
  const { config, pool } = services
  const most = config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  const taking = {
    leaseMs: config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000,
    deliveries: config.ORCHESTRATION_NODE_MAX_DELIVERIES,
  }
  if (most === 0) return claimNode(pool, id, { ...taking, most })
  const free = most > LAST_PLACES ? await claimNode(pool, id, { ...taking, most: most - LAST_PLACES }) : null
  return free ?? services.write(tx => claimNodeSerialized(tx, { id, project_id }, { ...taking, most }))
}

/** Ends an attempt whose workers were lost one after the other, or that nobody could even take. */
const giveUp = (services: Services, { execution_id, run_id }: NodeMessage, error: unknown) =>
  services.write(tx =>
    advanceRun(tx, services, run_id, {
      report: async run => {
        const row = run.open.get(execution_id)
        if (row?.status !== 'running' || (row.leased_until !== null && !run.isPast(row.leased_until))) return false
        const used = row.deliveries > 0 ? await lostNodeCall(tx, run.run, row, run.node(row.node_id)) : null
        if (used) await recordUsage(services, [used], tx)
        run.fail(row, error)
        return true
      },
    }),
  )

/** Has the attempts of workers that are gone made by others. */
export async function endNodeLeases(tx: Tx, isGone: (holder: Fragment) => Fragment): Promise<void> {
  for (const { id: execution_id, run_id, project_id } of await expireNodeLeases(tx, isGone))
    tx.send(nodeExecutionQueue, { execution_id, run_id, project_id })
}
