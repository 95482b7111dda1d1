import { recordUsage } from '../../control/usage/meter.ts'
import { AppError, type RecordedFailure, recordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import { ClaimLostError, claimOrReschedule, leaseTimings, processClaim } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { PAUSE_HOLD_MS } from '../../identity/projects/pause.ts'
import { chainBehind } from './fanout.ts'
import { type FiringRow, firingKind, isFiringTerminal, type TriggerRow } from './model.ts'
import { type TriggerFiringMessage, triggerFiringQueue } from './queue.ts'
import { settleTriggerFiring, storedOutput } from './settle.ts'
import {
  deferFiring,
  type FiringClaim,
  findFiring,
  lockQueuedFiring,
  lostWorkerCount,
  noteStarted,
  triggerFiringWork,
} from './store.ts'
import { checkFiring, type TriggerTarget, targetOf } from './targets.ts'

/** What is recorded of a failure. */
export const firingFailure = (error: unknown): RecordedFailure =>
  storableValue(recordedFailure(error)) as RecordedFailure

/**
 * Carries a firing out: starts its work, which ends it, or makes its call and ends it. Throws what could not be
 * recorded, and HandBack when the worker stops.
 */
export async function processTriggerFiring(message: TriggerFiringMessage, context: JobContext): Promise<void> {
  const { services } = context
  const found = await findFiring(services.pool, message.firing_id)
  if (!found || isFiringTerminal(found.firing) || found.firing.state === 'started') return
  const { firing, trigger, paused } = found
  // Taken up again once the project is resumed; a call that has begun goes on.
  if (paused && firing.state === 'queued') {
    await deferFiring(services.pool, firing.id, PAUSE_HOLD_MS)
    return
  }
  await withTriggerChain(chainBehind(firing, trigger.id), async () => {
    const target = await checked(services, firing, () => targetOf(trigger).target)
    if (!target) return
    if (target.call) await callTarget(message, context, trigger, firing, target)
    else await startTarget(context, trigger, firing)
  })
}

/** Does what may refuse a firing that waits, and records the refusal; null then. */
async function checked<T>(services: Services, { id }: FiringRow, work: () => T | Promise<T>): Promise<T | null> {
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
    services.log.info({ firing_id: id, outcome: 'failed', code: failure.code, decision: 'given up' }, 'firing')
    return null
  }
}

/** Starts the work of a firing, unless it was started: both in one transaction, or neither. */
async function startTarget({ services, log }: JobContext, trigger: TriggerRow, row: FiringRow): Promise<void> {
  await injectFault(services, 'trigger_claimed')
  const made = await checked(services, row, async () => {
    const { target, firing, prepared } = await checkFiring(services, trigger, row)
    const start = target.start as NonNullable<TriggerTarget['start']>
    return services.write(async tx => {
      if (!(await lockQueuedFiring(tx, row.id))) return null
      const started = await start(tx, services, { ...firing, id: row.id, prepared })
      const { result_id, status } = started
      const result = { target_type: target.type, result_id, status, output: null }
      await noteStarted(tx, row.id, result_id, result)
      if (started.over) await settleTriggerFiring(tx, row.id, { error: null })
      return started
    })
  })
  await injectFault(services, 'trigger_started')
  if (made)
    log.info({ firing_id: row.id, trigger_id: trigger.id, result_id: made.result_id, outcome: 'started' }, 'firing')
}

/** Makes the call of a firing and ends it, unless another worker does. */
async function callTarget(
  message: TriggerFiringMessage,
  context: JobContext,
  trigger: TriggerRow,
  row: FiringRow,
  target: TriggerTarget,
): Promise<void> {
  const { services } = context
  const lease = leaseTimings(services.config.TRIGGER_FIRING_LEASE_SECONDS * 1000)
  const claim = await services.write(tx => take(tx, services, { message, trigger, target }, lease.leaseMs))
  if (!claim) return
  await injectFault(services, 'trigger_claimed')
  const call = target.call as NonNullable<TriggerTarget['call']>
  let called = false
  const settle = (
    status: string,
    output: unknown,
    error: RecordedFailure | null,
    follow?: (tx: Tx) => Promise<void> | void,
  ) =>
    retryWhileUnavailable(
      () =>
        services.write(async tx => {
          const made = { target_type: target.type, result_id: null, status, output: storedOutput(output) }
          if (!(await settleTriggerFiring(tx, row.id, { result: called ? made : undefined, error }, claim)))
            throw new ClaimLostError()
          await follow?.(tx)
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
    async work(hold) {
      const { firing } = await checkFiring(services, trigger, row)
      called = true
      const output = await call(services, { ...firing, id: row.id, signal: hold.signal })
      hold.signal.throwIfAborted()
      await injectFault(services, 'trigger_called')
      await settle('completed', output, null, tx => target.called?.(tx, { ...firing, id: row.id }, output))
      return { outcome: 'succeeded' }
    },
    async fail(error) {
      if (!(error instanceof AppError)) services.log.error({ err: error, firing_id: row.id }, 'firing')
      const failure = firingFailure(error)
      // Its call was not made: it is once the project is resumed.
      if (failure.code === 'PROJECT_PAUSED') {
        await triggerFiringWork.requeue(services.pool, claim, { delayMs: PAUSE_HOLD_MS, failed: false })
        return { outcome: 'waiting', code: failure.code }
      }
      await settle('failed', null, failure)
      return { outcome: 'failed', code: failure.code, decision: 'given up' }
    },
  })
}

/** Claims a firing whose tool is called. One that another worker holds is looked at again when its lease is over. */
async function take(
  tx: Tx,
  services: Services,
  { message, trigger, target }: { message: TriggerFiringMessage; trigger: TriggerRow; target: TriggerTarget },
  leaseMs: number,
): Promise<FiringClaim | null> {
  const named = { entity: message.firing_id, id: message.firing_id }
  const firing = await firingKind.find(tx, named.id, true)
  if (!firing) return null
  const lost = await lostWorkerCount(tx, named.id)
  if (lost !== null && lost >= services.config.TRIGGER_FIRING_MAX_ATTEMPTS) {
    const used = await target.lost?.(tx, trigger, firing)
    if (used) await recordUsage(services, [used], tx)
    await settleTriggerFiring(tx, named.id, { error: abandoned(lost) })
    return null
  }
  const claim = await claimOrReschedule(tx, triggerFiringWork, named, { leaseMs }, triggerFiringQueue, message)
  return claim === 'held' ? null : claim
}

const abandoned = (attempts: number): RecordedFailure =>
  new AppError('TRIGGER_FIRING_ABANDONED', {
    message: 'The workers that called the tool were lost one after the other',
    meta: { attempts },
  }).recorded()

/** Ends a firing that no live worker holds with a failure. */
export async function abandonTriggerFiring(tx: Tx, { firing_id }: TriggerFiringMessage, error: unknown): Promise<void> {
  const firing = await firingKind.find(tx, firing_id, true)
  if (!firing || isFiringTerminal(firing) || firing.state === 'started') return
  if (firing.state === 'running' && (await lostWorkerCount(tx, firing_id)) === null) return
  await settleTriggerFiring(tx, firing_id, { error: firingFailure(error) })
}
