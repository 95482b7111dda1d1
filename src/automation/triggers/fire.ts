import { recordUsage } from '#control/usage/meter.ts'
import { AppError, type RecordedFailure, raise, recordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { currentSpan, type Span, type SpanStart, traced } from '#core/base/telemetry.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { type AttemptFields, logAttempt, noteAttempt, type WorkAttempt, type WorkMessage } from '#core/work/attempt.ts'
import { ClaimLostError, type JobContext, RequeueError } from '#core/work/handler.ts'
import { withoutRetries } from '#core/work/retry.ts'
import { MAX_MESSAGE_LEASE_SECONDS, work } from '#core/work/work.ts'
import { addSpans } from '#core/writes/span-outbox.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { chainOfFiring } from './fanout.ts'
import { effectiveInput } from './input.ts'
import { type FiringRow, firingKind, type TriggerRow, triggerKind } from './model.ts'
import { settleOrphanedFirings, settleTriggerFiring, storedOutput } from './settle.ts'
import { findFiring, hasFiringsToSweep, lockQueuedFiring, recordStartedWork, storeMappedInput } from './store.ts'
import { checkFiring, requireTargetType, type StartedWork, type TriggerTarget } from './targets.ts'

/** Delay of a firing whose project is paused, or for which no thread is free. */
const DEFERRAL_MS = 5000
/** Longest wait for a thread that maps an input: the firing has a slot meanwhile. */
const MAPPING_WAIT_MS = 2000

export const firingFailure = (error: unknown): RecordedFailure =>
  storableValue(recordedFailure(error)) as RecordedFailure

const isPaused = (error: unknown): boolean => error instanceof AppError && error.code === 'PROJECT_PAUSED'
const isBusy = (error: unknown): boolean => error instanceof AppError && error.code === 'SERVICE_NOT_READY'

const idsOf = ({ id, trigger_id, project_id }: FiringRow) => ({ firing_id: id, trigger_id, project_id })

/** Processes a firing: starts its work, which settles the firing later, or makes its call and settles it. */
export const triggerFiringWork = work({
  name: 'trigger.fire',
  concern: 'trigger',
  entity: firingKind,
  table: firingKind.table,
  entityColumn: 'id',
  columns: {},
  ids: idsOf,
  leaseSeconds: config => Math.min(config.TRIGGER_FIRING_LEASE_SECONDS, MAX_MESSAGE_LEASE_SECONDS),
  concurrency: config => config.TRIGGER_WORKER_CONCURRENCY,
  pausable: true,
  keepsRow: true,
  retry: config => withoutRetries(config.TRIGGER_FIRING_MAX_ATTEMPTS - 1),
  deferral: error => (isPaused(error) || isBusy(error) ? DEFERRAL_MS : null),
  lostError: ({ losses: attempts }) =>
    new AppError('TRIGGER_FIRING_ABANDONED', {
      message: `Firing abandoned after ${attempts} lost workers`,
      meta: { attempts },
    }),
  sweep: {
    seconds: config => Math.ceil(config.TRIGGER_SCHEDULER_INTERVAL_MS / 1000),
    dueIf: hasFiringsToSweep,
    also: settleOrphanedFirings,
  },
  span: ({ entity }) => firingSpan(entity),
  chain: firing => chainOfFiring(firing, firing.trigger_id),
  beforeClaim: startTarget,
  run: callTarget,
  async fail(tx, { services, entity: firing, claim, error }) {
    const isLost = error instanceof AppError && error.code === 'TRIGGER_FIRING_ABANDONED'
    const trigger = isLost ? await triggerKind.find(tx, firing.trigger_id) : null
    const usage = trigger && (await requireTargetType(trigger).target.lost?.(tx, trigger, firing))
    if (usage) await recordUsage(services, [usage], tx)
    // The claim that abandons a firing is no attempt.
    const attempts = isLost ? claim.claims - 1 : claim.claims
    await settleTriggerFiring(tx, firing.id, { error: firingFailure(error), attempts })
  },
})

const firingSpan = (firing: FiringRow): SpanStart => ({
  name: `fire ${firing.source}`,
  unit: true,
  from: { context: firing.trace_context, at: firing.created_at },
  shared: { [MUSTER.project]: firing.project_id },
  attributes: { [MUSTER.trigger]: firing.trigger_id, [MUSTER.firing]: firing.id },
})

/** Sends the wake-up of a firing. */
export const wakeFiring = (
  outbox: Pick<Outbox, 'send'>,
  { id, project_id }: Pick<FiringRow, 'id' | 'project_id'>,
): void => triggerFiringWork.wake(outbox, { entity: id, id, project_id })

/**
 * Maps the input of a queued firing and starts its work, without a claim. Returns false for a firing to claim: its target is
 * called.
 */
async function startTarget({ work_id }: WorkMessage, { services, retryIn }: JobContext): Promise<boolean> {
  const found = await findFiring(services.pool, work_id)
  if (!found) return true
  const { firing, trigger, paused } = found
  if (firing.state !== 'queued') return false
  // The sweep wakes it after the project is resumed.
  if (paused) return true
  const start = () => traced(firingSpan, firing, span => startFiring(services, { firing, trigger, retryIn }, span))
  return withTriggerChain(chainOfFiring(firing, trigger.id), start)
}

/** Maps the input of a firing and starts its work. Returns false for a firing to claim. */
async function startFiring(
  services: Services,
  { firing, trigger, retryIn }: { firing: FiringRow; trigger: TriggerRow } & Pick<JobContext, 'retryIn'>,
  span: Span | null,
): Promise<boolean> {
  const startedAt = performance.now()
  const log = (fields: AttemptFields): void => {
    noteAttempt(span, fields)
    logAttempt(services.log, triggerFiringWork.name, startedAt, { ...idsOf(firing), attempt: 1, ...fields })
  }
  let input: MappedInput = null
  try {
    const { call } = requireTargetType(trigger).target
    input = await mapInput(services, trigger, firing)
    if (call) {
      if (input !== null) await storeMappedInput(services.pool, firing.id, input)
      return false
    }
    await injectFault(services, 'trigger_starting')
    const started = await startWork(services, trigger, firing, input)
    await injectFault(services, 'trigger_started')
    log(started ? { outcome: 'started', result_id: started.result_id } : { outcome: 'claim_lost' })
  } catch (error) {
    if (!(error instanceof AppError) || isTransient(error)) throw error
    if (isPaused(error)) return true
    if (isBusy(error)) {
      retryIn(DEFERRAL_MS)
      throw new RequeueError('no thread is free')
    }
    const failure = firingFailure(error)
    // Another worker may have started the work since.
    await services.write(async tx => {
      if (!(await lockQueuedFiring(tx, firing.id))) return
      await settleTriggerFiring(tx, firing.id, { input, error: failure })
      addSpans(services, tx, { attributes: { [MUSTER.outcome]: 'failed' }, error: failure.code })
    })
    log({ outcome: 'failed', code: failure.code, decision: 'abandoned' })
  }
  return true
}

/** Input of a firing that has been mapped for it; null if the stored input is effective. */
type MappedInput = Record<string, unknown> | null

/** Maps the input of a firing by the `input_mapping` of its trigger. @throws TRIGGER_INPUT_INVALID, SERVICE_NOT_READY */
async function mapInput(services: Services, trigger: TriggerRow, firing: FiringRow): Promise<MappedInput> {
  if (!firing.unmapped) return null
  const { id, source, scheduled_for, created_at: fired_at, input } = firing
  return effectiveInput(services, trigger, input, { id, source, scheduled_for, fired_at }, MAPPING_WAIT_MS)
}

/** Starts the work of a firing in the transaction that records it. Returns null if the firing is no longer queued. */
async function startWork(
  services: Services,
  trigger: TriggerRow,
  row: FiringRow,
  input: MappedInput,
): Promise<StartedWork | null> {
  const { target, firing, prepared } = await checkFiring(services, trigger, { ...row, input: input ?? row.input })
  const start = target.start as NonNullable<TriggerTarget['start']>
  return services.write(async tx => {
    if (!(await lockQueuedFiring(tx, row.id))) return null
    const work = await start(tx, services, { ...firing, id: row.id, prepared })
    const { result_id, status } = work
    await recordStartedWork(tx, row.id, { target_type: target.type, result_id, status, output: null }, input)
    if (work.over) await settleTriggerFiring(tx, row.id, { error: null })
    addSpans(services, tx, { attributes: { [MUSTER.outcome]: 'started' } })
    return work
  })
}

/** Calls the target of a claimed firing and settles the firing. */
async function callTarget({
  services,
  entity,
  signal,
  settle,
}: WorkAttempt<FiringRow, object>): Promise<AttemptFields> {
  const trigger = await triggerKind.find(services.pool, entity.trigger_id)
  // It was deleted with its firings.
  if (!trigger) throw new ClaimLostError()
  const { target, firing } = await checkFiring(services, trigger, entity)
  const { target_type, id } = entity
  // The target of the trigger may have changed since another worker called the previous one.
  const call = target.call ?? raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type, target_id: trigger.target_id } })
  let output: unknown = null
  let error: RecordedFailure | null = null
  try {
    output = await call(services, { ...firing, id, signal })
    signal.throwIfAborted()
  } catch (thrown) {
    if (signal.aborted || isTransient(thrown) || isPaused(thrown)) throw thrown
    if (!(thrown instanceof AppError)) services.log.error({ err: thrown, firing_id: id }, 'firing failed')
    error = firingFailure(thrown)
  }
  if (error) currentSpan()?.fail(error.code)
  await injectFault(services, 'trigger_called')
  await settle(async tx => {
    const status = error ? 'failed' : 'completed'
    const result = { target_type: target.type, result_id: null, status, output: storedOutput(output) }
    await settleTriggerFiring(tx, id, { result, error })
    if (!error) await target.called?.(tx, { ...firing, id }, output)
  })
  return error ? { outcome: 'failed', code: error.code, decision: 'abandoned' } : { outcome: 'succeeded' }
}
