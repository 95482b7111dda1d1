import type { Config } from '../../config.ts'
import { recordUsage } from '../../control/usage/meter.ts'
import { AppError } from '../../core/api/errors.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import type { Fragment } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import { every, HandBack, handler, type JobContext } from '../../core/jobs/handler.ts'
import { message } from '../../core/jobs/queue.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import { type Advance, failureOf } from './advance.ts'
import { makeAttempts, requeueAttempt } from './attempt.ts'
import type { Advanced } from './attempt-model.ts'
import { endLeases, findWaiting, type Taken, take, takenOf, takeStrictly } from './attempt-store.ts'
import { followAbove } from './below.ts'
import { advance } from './go-on.ts'
import { lostNodeCall } from './node-tool.ts'
import {
  belowQueue,
  type NodeMessage,
  nodeQueue,
  type RunMessage,
  removalQueue,
  runQueue,
  runSweep,
  runTold,
} from './queue.ts'
import { remove } from './removal.ts'
import { hasLiveRuns } from './store.ts'
import { sweep } from './sweep.ts'

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
          advance(tx, services, run_id, {
            report: async run => {
              await run.stop('failed', failureOf(error))
              return true
            },
          }),
        ),
    },
    handleRun,
  ),
  handler(runTold, { batch: TOLD, concurrency: 1 }, (told, { services }) =>
    services.queues.send(told.map(each => message(runQueue, each))),
  ),
  handler(
    nodeQueue,
    {
      concurrency: config => config.ORCHESTRATION_WORKER_CONCURRENCY,
      leaseSeconds,
      graceMs,
      onExhausted: (node, error, services) => giveUp(services, node, error),
    },
    handleNode,
  ),
  handler(belowQueue, { concurrency: 1, leaseSeconds, graceMs }, followAbove),
  handler(removalQueue, { concurrency: 1, leaseSeconds, graceMs }, remove),
  handler(runSweep, { concurrency: 1 }, ({ all }, context) => sweep(context, all)),
]

const sweepSeconds = (config: Config): number => Math.ceil(config.ORCHESTRATION_SCHEDULER_INTERVAL_MS / 1000)
/** Runs that wait, of which there may be many, are looked through at every sixth sweep. */
const ALL_EVERY = 6

/** Where nothing runs or waits a sweep is one look, and no message. */

export const runSchedules = [
  every('orchestration.sweep', sweepSeconds, runSweep, { all: false }, hasLiveRuns),
  every('orchestration.sweep all', config => ALL_EVERY * sweepSeconds(config), runSweep, { all: true }, hasLiveRuns),
]

/** Advances a run; an attempt that begins with it is made at once where this process has room. */
async function handleRun({ run_id }: RunMessage, context: JobContext): Promise<void> {
  const { services, signal, stopping } = context
  const slot: { giveBack: (() => void) | null } = { giveBack: null }
  const made: { after: Advanced | null } = { after: null }
  const mayTake = ({ held, run }: Advance): boolean => {
    if (stopping.aborted || !isFarFromFull(services, held)) return false
    slot.giveBack ??= context.takeSlot(nodeQueue, run.project_id)
    return slot.giveBack !== null
  }
  try {
    const after = await services.write(async tx => {
      const advanced = await advance(tx, services, run_id, {
        report: async () => {
          await fault(services, 'run_locked')
          return true
        },
        takes: run => (mayTake(run) ? 1 : 0),
      })
      made.after = advanced
      await fault(services, 'run_advanced')
      context.complete(tx)
      return advanced
    })
    await fault(services, 'run_committed')
    const [first] = after?.jobs ?? []
    if (after && first)
      await context
        .aside(() => makeAttempts(services, { taken: takenOf(first, after.run), known: after.known }, signal, stopping))
        .catch(error => services.log.error({ err: error, run_id }, 'attempts of a run given up'))
  } catch (error) {
    // Its answer was lost; what it took, if it was committed, is for another worker.
    const { after } = made
    if (isTransient(error) && after)
      for (const row of after.jobs) await requeueAttempt(services, takenOf(row, after.run))
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
    if (signal.aborted) throw new HandBack('the worker stops')
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
    throw new HandBack('the project makes as many attempts as it may')
  }
}

const isFarFromFull = ({ config }: Services, held: number): boolean => {
  const most = config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  return most === 0 || held + LAST_PLACES <= most
}

/** Takes an attempt where its project has a place for it. */
async function takeAttempt(services: Services, { execution_id: id, project_id }: NodeMessage): Promise<Taken | null> {
  const { config, pool } = services
  const most = config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  const taking = {
    leaseMs: config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000,
    deliveries: config.ORCHESTRATION_NODE_MAX_DELIVERIES,
  }
  if (most === 0) return take(pool, id, { ...taking, most })
  const free = most > LAST_PLACES ? await take(pool, id, { ...taking, most: most - LAST_PLACES }) : null
  return free ?? services.write(tx => takeStrictly(tx, { id, project_id }, { ...taking, most }))
}

/** Ends an attempt whose workers were lost one after the other, or that nobody could even take. */
const giveUp = (services: Services, { execution_id, run_id }: NodeMessage, error: unknown) =>
  services.write(tx =>
    advance(tx, services, run_id, {
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
  for (const { id: execution_id, run_id, project_id } of await endLeases(tx, isGone))
    tx.send(nodeQueue, { execution_id, run_id, project_id })
}
