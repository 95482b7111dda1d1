import { timeIn } from '../base/clock.ts'
import { AppError } from '../base/errors.ts'
import { injectFault } from '../base/fault-injection.ts'
import type { Logger } from '../base/log.ts'
import type { Services } from '../base/services.ts'
import { isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import type { Queue } from '../queues/queue.ts'
import type { Tx } from '../writes/writer.ts'
import { ClaimLostError, type JobContext, RequeueError } from './handler.ts'
import type { RetryRule } from './retry.ts'
import type { WorkClaim, WorkTable } from './store.ts'

/** Wake-up of a work item. */
export type WorkMessage = { entity_id: string; work_id: string; project_id: string }

/** Log fields of an attempt. */
export type AttemptFields = { outcome: string } & Record<string, unknown>

/**
 * Writes the log line of an attempt at durable work. An AppError is an expected outcome, any other error a fault.
 * @param work name of the kind: its queue
 * @param started value of performance.now() at the start of the attempt
 */
export function logAttempt(log: Logger, work: string, started: number, fields: AttemptFields, error?: unknown): void {
  const line = { work, ...fields, duration_ms: Math.round(performance.now() - started) }
  if (error === undefined || error instanceof AppError) log.info(line, 'work attempted')
  else log.error({ ...line, err: error }, 'work attempted')
}

/** One attempt at a work item, under a claim whose lease is the message. */
export type WorkAttempt<Row, Columns> = {
  services: Services
  claim: WorkClaim & Columns
  /** The entity as read by the claim. */
  entity: Row
  /** Aborted when the claim is lost, or when the worker stops without waiting. */
  signal: AbortSignal
  /** Aborted when the worker begins to stop. */
  stopping: AbortSignal
  /**
   * Runs a transaction under the locks of the entity and the item. Repeats it while the database is unavailable.
   * @throws ClaimLostError
   */
  write<T>(work: (tx: Tx, entity: Row) => Promise<T>): Promise<T>
  /** Locks the item until the transaction ends. Raises ClaimLostError. */
  fence(tx: Tx): Promise<void>
  /** Writes columns of the item. Raises ClaimLostError. */
  set(db: Queryable, assignments: Fragment): Promise<void>
  /** Settles the item: `work` writes the effects, and the same transaction removes the item and its message. */
  settle<T>(work: (tx: Tx, entity: Row) => Promise<T>): Promise<T>
  /**
   * Moves the item to a wait state until its next wake-up, by the assignments that `work` returns; null if `work` has written the
   * new state itself.
   */
  suspend(work: (tx: Tx, entity: Row) => Promise<Fragment | null>): Promise<void>
  /** Makes the item due again after `delayMs`, without counting a failure. */
  reschedule(delayMs: number): Promise<void>
}

const codeOf = (error: unknown): string => (error instanceof AppError ? error.code : 'INTERNAL_ERROR')

/** Options shared by all attempts of a kind of work. */
export type AttemptOptions<Row, Columns> = {
  name: string
  queue: Queue<WorkMessage>
  table: WorkTable<Row, Columns>
  retry: RetryRule
  leaseMs: number
  ids: (entity: Row, claim: WorkClaim) => Record<string, unknown>
  run: (attempt: WorkAttempt<Row, Columns>) => Promise<AttemptFields>
  fail: (tx: Tx, failed: FailedWork<Row, Columns>) => Promise<Record<string, unknown> | undefined>
  isFinal: (error: unknown) => boolean
  deferral: (error: unknown, claim: WorkClaim & Columns) => number | null
  lockFirst?: (tx: Tx, entity: Row) => Promise<unknown>
}

/** An item to abandon, with the error of its last attempt. */
export type FailedWork<Row, Columns> = {
  services: Services
  entity: Row
  claim: WorkClaim & Columns
  error: unknown
}

/**
 * Runs one attempt and writes its log line.
 * @throws RequeueError when the worker stops or `run` throws it, and transient database errors: both leave the message to the
 *   queue
 */
export async function runAttempt<Row, Columns>(
  context: JobContext,
  message: WorkMessage,
  { claim, entity }: { claim: WorkClaim & Columns; entity: Row },
  options: AttemptOptions<Row, Columns>,
): Promise<void> {
  const { services, signal, stopping } = context
  const { name, queue, table, retry } = options
  const started = performance.now()
  const lost = new AbortController()
  const live = AbortSignal.any([signal, lost.signal])
  const log = (fields: AttemptFields, error?: unknown): void =>
    logAttempt(services.log, name, started, { ...options.ids(entity, claim), attempt: claim.claims, ...fields }, error)
  const loseClaim = (): never => {
    const error = new ClaimLostError()
    lost.abort(error)
    throw error
  }
  let isFinished = false
  // Ends the calls of a superseded attempt. Errors are left to the renewal of the message.
  const watch = setInterval(async () => {
    const isCurrent = await table.isCurrent(services.pool, claim).catch(() => true)
    if (!isCurrent && !isFinished) lost.abort(new ClaimLostError())
  }, options.leaseMs / 3)
  const transact = <T>(work: (tx: Tx) => Promise<T>): Promise<T> => {
    live.throwIfAborted()
    const locked = async (tx: Tx) => {
      await options.lockFirst?.(tx, entity)
      return work(tx)
    }
    return retryWhileUnavailable(() => services.write(locked), { signal: live })
  }
  /** Runs the last transaction of the attempt, which also completes the message. */
  const finish = async <T>(work: (tx: Tx) => Promise<T>): Promise<T> => {
    const value = await transact(async tx => {
      const result = await work(tx)
      context.complete(tx)
      await injectFault(services, `${name}/ending`)
      return result
    })
    isFinished = true
    await injectFault(services, `${name}/ended`)
    return value
  }
  const requeue = (delayMs: number, failed: boolean): Promise<void> =>
    finish(async tx => {
      if (!(await table.requeue(tx, claim, { delayMs, failed }))) loseClaim()
      tx.send(queue, message, delayMs > 0 ? { startAfter: timeIn(delayMs) } : {})
    })
  const settle = <T>(work: (tx: Tx, entity: Row) => Promise<T>): Promise<T> =>
    finish(async tx => work(tx, (await table.remove(tx, claim)) ?? loseClaim()))
  const attempt: WorkAttempt<Row, Columns> = {
    services,
    claim,
    entity,
    signal: live,
    stopping,
    write: work => transact(async tx => work(tx, (await table.lock(tx, claim)) ?? loseClaim())),
    async fence(tx) {
      if (!(await table.set(tx, claim, sql.fragment`claims = a.claims`))) loseClaim()
    },
    async set(db, assignments) {
      if (!(await table.set(db, claim, assignments))) loseClaim()
    },
    settle,
    suspend: work =>
      finish(async tx => {
        const assignments = await work(tx, (await table.lock(tx, claim)) ?? loseClaim())
        if (assignments && !(await table.set(tx, claim, assignments))) loseClaim()
      }),
    reschedule: delayMs => requeue(delayMs, false),
  }
  /** Requeues the item for the redelivery of its message, without counting the attempt. */
  const requeueUncounted = async (): Promise<void> => {
    await retryWhileUnavailable(() => table.requeue(services.pool, claim, { delayMs: 0, failed: false }), { signal })
    log({ outcome: 'requeued' })
  }
  const recordFailure = async (error: unknown): Promise<AttemptFields> => {
    const deferralMs = options.deferral(error, claim)
    if (deferralMs !== null) {
      await requeue(deferralMs, false)
      return { outcome: 'deferred', next_ms: deferralMs }
    }
    if (options.isFinal(error) || claim.failures + 1 >= retry.attempts) {
      const fields = await settle((tx, row) => options.fail(tx, { services, entity: row, claim, error }))
      return { outcome: 'failed', code: codeOf(error), decision: 'abandoned', ...fields }
    }
    const delayMs = retry.delayMs(claim.failures)
    await requeue(delayMs, true)
    return { outcome: 'retry', code: codeOf(error), decision: 'retry', next_ms: delayMs }
  }
  try {
    await injectFault(services, `${name}/claimed`)
    const fields = await options.run(attempt)
    if (!isFinished) throw new Error(`${name} returned without settle, suspend or reschedule`)
    log(fields)
  } catch (error) {
    if (isFinished) {
      services.log.error({ err: error, work: name, ...options.ids(entity, claim) }, 'work failed after settlement')
      return
    }
    if ((signal.aborted && stopping.aborted) || error instanceof RequeueError) {
      await requeueUncounted()
      throw new RequeueError('worker is stopping')
    }
    if (error instanceof ClaimLostError || live.aborted) return log({ outcome: 'claim_lost' })
    if (isTransient(error)) {
      await requeueUncounted()
      throw error
    }
    try {
      log(await recordFailure(error), error)
    } catch (failure) {
      if (!(failure instanceof ClaimLostError)) throw failure
      log({ outcome: 'claim_lost' })
    }
  } finally {
    clearInterval(watch)
  }
}
