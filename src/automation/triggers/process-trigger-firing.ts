import { recordUsage } from '../../control/usage/meter.ts'
import { AppError, type RecordedFailure, recordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { Tx } from '../../core/db/writer.ts'
import { ClaimLostError, type JobContext } from '../../core/jobs/handler.ts'
import { claimOrReschedule, leaseTimings, processClaim } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { PAUSE_HOLD_MS } from '../../identity/projects/pause.ts'
import { chainOfFiring } from './fanout.ts'
import { type FiringRow, firingKind, isFiringTerminal, type TriggerRow } from './model.ts'
import { type TriggerFiringMessage, triggerFiringQueue } from './queue.ts'
import { settleTriggerFiring, storedOutput } from './settle.ts'
import {
  countLostWorkers,
  deferFiring,
  type FiringClaim,
  findFiring,
  lockQueuedFiring,
  recordStartedWork,
  triggerFiringWork,
} from './store.ts'
import { checkFiring, requireTargetType, type TriggerTarget } from './targets.ts'

export const firingFailure = (error: unknown): RecordedFailure =>
  storableValue(recordedFailure(error)) as RecordedFailure

/**
 * Processes a firing: starts its work, which settles the firing later, or makes its call and settles it.
 * @throws RequeueError when the worker stops, and failures that could not be recorded
 */
export async function processTriggerFiring(message: TriggerFiringMessage, context: JobContext): Promise<void> {
  const { services } = context
  const found = await findFiring(services.pool, message.firing_id)
  if (!found || isFiringTerminal(found.firing) || found.firing.state === 'started') return
  const { firing, trigger, paused } = found
  // Released when the project is resumed. A call in progress continues.
  if (paused && firing.state === 'queued') {
    await deferFiring(services.pool, firing.id, PAUSE_HOLD_MS)
    return
  }
  await withTriggerChain(chainOfFiring(firing, trigger.id), async () => {
    const target = await runRecordingRefusal(services, firing, () => requireTargetType(trigger).target)
    if (!target) return
    if (target.call) await callTarget(message, context, trigger, firing, target)
    else await startTarget(context, trigger, firing)
  })
}

/** Runs `work` for a queued firing. If it is refused, records the refusal and returns null. */
async function runRecordingRefusal<T>(
  services: Services,
  { id }: FiringRow,
  work: () => T | Promise<T>,
): Promise<T | null> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY' || isTransient(error)) throw error
    if (error.code === 'PROJECT_PAUSED') {
      await deferFiring(services.pool, id, PAUSE_HOLD_MS)
      return null
    }
    const failure = firingFailure(error)
    await services.write(tx => settleTriggerFiring(tx, id, { error: failure }))
    services.log.info({ firing_id: id, outcome: 'failed', code: failure.code, decision: 'abandoned' }, 'firing failed')
    return null
  }
}

/** Starts the work of a queued firing and stores its id, in one transaction. */
async function startTarget({ services, log }: JobContext, trigger: TriggerRow, row: FiringRow): Promise<void> {
  await injectFault(services, 'trigger_claimed')
  const started = await runRecordingRefusal(services, row, async () => {
    const { target, firing, prepared } = await checkFiring(services, trigger, row)
    const start = target.start as NonNullable<TriggerTarget['start']>
    return services.write(async tx => {
      if (!(await lockQueuedFiring(tx, row.id))) return null
      const work = await start(tx, services, { ...firing, id: row.id, prepared })
      const { result_id, status } = work
      const result = { target_type: target.type, result_id, status, output: null }
      await recordStartedWork(tx, row.id, result_id, result)
      if (work.over) await settleTriggerFiring(tx, row.id, { error: null })
      return work
    })
  })
  await injectFault(services, 'trigger_started')
  if (started)
    log.info(
      { firing_id: row.id, trigger_id: trigger.id, result_id: started.result_id, outcome: 'started' },
      'firing started',
    )
}

/** Claims a firing, makes its call and settles it. Does nothing if another worker holds the claim. */
async function callTarget(
  message: TriggerFiringMessage,
  context: JobContext,
  trigger: TriggerRow,
  row: FiringRow,
  target: TriggerTarget,
): Promise<void> {
  const { services } = context
  const lease = leaseTimings(services.config.TRIGGER_FIRING_LEASE_SECONDS * 1000)
  const claim = await services.write(tx => claimFiring(tx, services, { message, trigger, target }, lease.leaseMs))
  if (!claim) return
  await injectFault(services, 'trigger_claimed')
  const call = target.call as NonNullable<TriggerTarget['call']>
  let called = false
  const settle = (
    status: string,
    output: unknown,
    error: RecordedFailure | null,
    record?: (tx: Tx) => Promise<void> | void,
  ) =>
    retryWhileUnavailable(
      () =>
        services.write(async tx => {
          const result = { target_type: target.type, result_id: null, status, output: storedOutput(output) }
          if (!(await settleTriggerFiring(tx, row.id, { result: called ? result : undefined, error }, claim)))
            throw new ClaimLostError()
          await record?.(tx)
        }),
      { signal: context.signal },
    )
  await processClaim(context, {
    what: 'firing',
    ids: { firing_id: row.id, trigger_id: trigger.id, project_id: row.project_id },
    attempts: triggerFiringWork,
    claim,
    lease,
    lock: tx => firingKind.find(tx, row.id, true),
    async work(activeClaim) {
      const { firing } = await checkFiring(services, trigger, row)
      called = true
      const output = await call(services, { ...firing, id: row.id, signal: activeClaim.signal })
      activeClaim.signal.throwIfAborted()
      await injectFault(services, 'trigger_called')
      await settle('completed', output, null, tx => target.called?.(tx, { ...firing, id: row.id }, output))
      return { outcome: 'succeeded' }
    },
    async fail(error) {
      if (!(error instanceof AppError)) services.log.error({ err: error, firing_id: row.id }, 'firing failed')
      const failure = firingFailure(error)
      // The call was not made. Another attempt makes it when the project is resumed.
      if (failure.code === 'PROJECT_PAUSED') {
        await triggerFiringWork.requeue(services.pool, claim, { delayMs: PAUSE_HOLD_MS, failed: false })
        return { outcome: 'waiting', code: failure.code }
      }
      await settle('failed', null, failure)
      return { outcome: 'failed', code: failure.code, decision: 'abandoned' }
    },
  })
}

/**
 * Claims a firing for a call, or fails it after too many lost workers. If another worker holds the claim, reschedules
 * the message to the end of its lease and returns null.
 */
async function claimFiring(
  tx: Tx,
  services: Services,
  { message, trigger, target }: { message: TriggerFiringMessage; trigger: TriggerRow; target: TriggerTarget },
  leaseMs: number,
): Promise<FiringClaim | null> {
  const ref = { entity: message.firing_id, id: message.firing_id }
  const firing = await firingKind.find(tx, ref.id, true)
  if (!firing) return null
  const lost = await countLostWorkers(tx, ref.id)
  if (lost !== null && lost >= services.config.TRIGGER_FIRING_MAX_ATTEMPTS) {
    const usage = await target.lost?.(tx, trigger, firing)
    if (usage) await recordUsage(services, [usage], tx)
    await settleTriggerFiring(tx, ref.id, { error: abandonedError(lost) })
    return null
  }
  const claim = await claimOrReschedule(tx, triggerFiringWork, ref, { leaseMs }, triggerFiringQueue, message)
  return claim === 'held' ? null : claim
}

const abandonedError = (attempts: number): RecordedFailure =>
  new AppError('TRIGGER_FIRING_ABANDONED', {
    message: `Firing abandoned after ${attempts} lost workers`,
    meta: { attempts },
  }).recorded()

/** Fails a firing that is queued or whose lease has expired. */
export async function abandonTriggerFiring(tx: Tx, { firing_id }: TriggerFiringMessage, error: unknown): Promise<void> {
  const firing = await firingKind.find(tx, firing_id, true)
  if (!firing || isFiringTerminal(firing) || firing.state === 'started') return
  if (firing.state === 'running' && (await countLostWorkers(tx, firing_id)) === null) return
  await settleTriggerFiring(tx, firing_id, { error: firingFailure(error) })
}
