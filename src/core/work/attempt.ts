import { timeIn } from '../base/clock.ts'
import { AppError } from '../base/errors.ts'
import { injectFault } from '../base/fault-injection.ts'
import { NewerFormatError } from '../base/format-versions.ts'
import type { Logger } from '../base/log.ts'
import type { Services } from '../base/services.ts'
import { type Span, type SpanStart, traced } from '../base/telemetry.ts'
import { MUSTER } from '../base/telemetry-names.ts'
import { isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import type { Queue } from '../queues/queue.ts'
import { addSpans, type SpanNote } from '../writes/span-outbox.ts'
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
  span?: (claimed: ClaimedWork<Row, Columns>) => SpanStart
  run: (attempt: WorkAttempt<Row, Columns>) => Promise<AttemptFields>
  fail: (tx: Tx, failed: FailedWork<Row, Columns>) => Promise<Record<string, unknown> | undefined>
  isFinal: (error: unknown) => boolean
  deferral: (error: unknown, claim: WorkClaim & Columns) => number | null
  lockFirst?: (tx: Tx, entity: Row) => Promise<unknown>
}

type ClaimedWork<Row, Columns> = { claim: WorkClaim & Columns; entity: Row }

/** An item to abandon, with the error of its last attempt. */
export type FailedWork<Row, Columns> = {
  services: Services
  entity: Row
  claim: WorkClaim & Columns
  error: unknown
}

/** The claim of an attempt and its writes, until it is settled or lost. */
class AttemptClaim<Row, Columns> {
  readonly #context: JobContext
  readonly #message: WorkMessage
  readonly #claim: WorkClaim & Columns
  readonly #entity: Row
  readonly #options: AttemptOptions<Row, Columns>
  readonly #lost = new AbortController()
  /** Aborted when the claim is lost, or when the worker stops without waiting. */
  readonly live: AbortSignal
  #isFinished = false

  constructor(
    context: JobContext,
    message: WorkMessage,
    { claim, entity }: { claim: WorkClaim & Columns; entity: Row },
    options: AttemptOptions<Row, Columns>,
  ) {
    this.#context = context
    this.#message = message
    this.#claim = claim
    this.#entity = entity
    this.#options = options
    this.live = AbortSignal.any([context.signal, this.#lost.signal])
  }

  /** Whether the last transaction of the attempt is written. */
  get isFinished(): boolean {
    return this.#isFinished
  }

  /** Returns the functions of the attempt for the code that does the work. */
  attempt(): WorkAttempt<Row, Columns> {
    const { services, stopping } = this.#context
    const { table } = this.#options
    const claim = this.#claim
    return {
      services,
      claim,
      entity: this.#entity,
      signal: this.live,
      stopping,
      write: work => this.#transact(async tx => work(tx, (await table.lock(tx, claim)) ?? this.#lose())),
      fence: tx => this.#set(tx, sql.fragment`claims = a.claims`),
      set: (db, assignments) => this.#set(db, assignments),
      settle: work => this.settle(work),
      suspend: work =>
        this.#finish(
          async tx => {
            const assignments = await work(tx, (await table.lock(tx, claim)) ?? this.#lose())
            if (assignments) await this.#set(tx, assignments)
          },
          noteOf({ outcome: 'suspended' }),
        ),
      reschedule: delayMs => this.requeue(delayMs, false),
    }
  }

  /** Ends the calls of a superseded attempt. Errors are left to the renewal of the message. */
  async watch(): Promise<void> {
    const isCurrent = await this.#options.table.isCurrent(this.#context.services.pool, this.#claim).catch(() => true)
    if (!isCurrent && !this.#isFinished) this.#lost.abort(new ClaimLostError())
  }

  settle<T>(work: (tx: Tx, entity: Row) => Promise<T>, note = noteOf({ outcome: 'settled' })): Promise<T> {
    return this.#finish(async tx => work(tx, (await this.#options.table.remove(tx, this.#claim)) ?? this.#lose()), note)
  }

  /** Makes the item due again after `delayMs`; `failed` counts a failure. */
  requeue(delayMs: number, failed: boolean, note = noteOf({ outcome: 'deferred' })): Promise<void> {
    const { queue, table } = this.#options
    return this.#finish(async tx => {
      if (!(await table.requeue(tx, this.#claim, { delayMs, failed }))) this.#lose()
      tx.send(queue, this.#message, delayMs > 0 ? { startAfter: timeIn(delayMs) } : {})
    }, note)
  }

  /** Requeues the item for the redelivery of its message, without counting the attempt. False if the claim is lost. */
  requeueUncounted(): Promise<boolean> {
    const { services, signal } = this.#context
    let isUnanswered = false
    const requeue = async () => {
      try {
        const isHeld = await this.#options.table.requeue(services.pool, this.#claim, { delayMs: 0, failed: false })
        // A write whose answer was lost may have requeued the item.
        return isHeld || isUnanswered
      } catch (error) {
        isUnanswered = true
        throw error
      }
    }
    return retryWhileUnavailable(requeue, { signal })
  }

  #lose(): never {
    const error = new ClaimLostError()
    this.#lost.abort(error)
    throw error
  }

  async #set(db: Queryable, assignments: Fragment): Promise<void> {
    if (!(await this.#options.table.set(db, this.#claim, assignments))) this.#lose()
  }

  async #transact<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    this.live.throwIfAborted()
    const locked = async (tx: Tx) => {
      await this.#options.lockFirst?.(tx, this.#entity)
      return work(tx)
    }
    return retryWhileUnavailable(() => this.#context.services.write(locked), { signal: this.live })
  }

  /** Runs the last transaction of the attempt, which also completes the message. */
  async #finish<T>(work: (tx: Tx) => Promise<T>, note: SpanNote): Promise<T> {
    const { services } = this.#context
    const { name } = this.#options
    const value = await this.#transact(async tx => {
      const result = await work(tx)
      addSpans(services, tx, note)
      this.#context.complete(tx)
      await injectFault(services, `${name}/ending`)
      return result
    })
    this.#isFinished = true
    await injectFault(services, `${name}/ended`)
    return value
  }
}

/**
 * Runs one attempt and writes its log line.
 * @throws RequeueError when the worker stops or `run` throws it, transient database errors, and NewerFormatError: all leave the
 *   message to the queue
 */
export const runAttempt = <Row, Columns>(
  context: JobContext,
  message: WorkMessage,
  claimed: ClaimedWork<Row, Columns>,
  options: AttemptOptions<Row, Columns>,
): Promise<void> =>
  options.span
    ? traced(options.span, claimed, span => makeAttempt(context, message, claimed, options, span))
    : makeAttempt(context, message, claimed, options, null)

const noteOf = ({ outcome, code }: AttemptFields): SpanNote => ({
  attributes: { [MUSTER.outcome]: outcome },
  error: typeof code === 'string' ? code : null,
})

/** Adds the outcome of an attempt to its span. */
export function noteAttempt(span: Span | null, { outcome, code }: AttemptFields): void {
  span?.set({ [MUSTER.outcome]: outcome })
  if (typeof code === 'string') span?.fail(code)
}

async function makeAttempt<Row, Columns>(
  context: JobContext,
  message: WorkMessage,
  claimed: ClaimedWork<Row, Columns>,
  options: AttemptOptions<Row, Columns>,
  span: Span | null,
): Promise<void> {
  const { services, signal, stopping } = context
  const { claim, entity } = claimed
  const { name } = options
  const started = performance.now()
  const item = new AttemptClaim(context, message, claimed, options)
  const log = (fields: AttemptFields, error?: unknown): void => {
    noteAttempt(span, fields)
    logAttempt(services.log, name, started, { ...options.ids(entity, claim), attempt: claim.claims, ...fields }, error)
  }
  span?.set({ [MUSTER.attempt]: claim.claims })
  const requeueUncounted = async (): Promise<void> => {
    try {
      log({ outcome: (await item.requeueUncounted()) ? 'requeued' : 'claim_lost' })
    } catch (failure) {
      // The redelivery of the message counts the attempt as lost.
      log({ outcome: 'requeue_failed' }, failure)
    }
  }
  const watch = setInterval(() => item.watch(), options.leaseMs / 3)
  try {
    await injectFault(services, `${name}/claimed`)
    const fields = await options.run(item.attempt())
    if (!item.isFinished) throw new Error(`${name} returned without settle, suspend or reschedule`)
    log(fields)
  } catch (error) {
    if (item.isFinished) {
      services.log.error({ err: error, work: name, ...options.ids(entity, claim) }, 'work failed after settlement')
      return
    }
    if ((signal.aborted && stopping.aborted) || error instanceof RequeueError) {
      await requeueUncounted()
      throw new RequeueError('worker is stopping')
    }
    if (error instanceof ClaimLostError || item.live.aborted) return log({ outcome: 'claim_lost' })
    if (isTransient(error) || error instanceof NewerFormatError) {
      await requeueUncounted()
      throw error
    }
    try {
      log(await recordFailure(services, item, claim, error, options), error)
    } catch (failure) {
      if (!(failure instanceof ClaimLostError)) throw failure
      log({ outcome: 'claim_lost' })
    }
  } finally {
    clearInterval(watch)
  }
}

/** Defers, requeues or abandons the item after a failed attempt. */
async function recordFailure<Row, Columns>(
  services: Services,
  item: AttemptClaim<Row, Columns>,
  claim: WorkClaim & Columns,
  error: unknown,
  { deferral, isFinal, retry, fail }: AttemptOptions<Row, Columns>,
): Promise<AttemptFields> {
  const deferralMs = deferral(error, claim)
  if (deferralMs !== null) {
    await item.requeue(deferralMs, false)
    return { outcome: 'deferred', next_ms: deferralMs }
  }
  if (isFinal(error) || claim.failures + 1 >= retry.attempts) {
    const failed = { outcome: 'failed', code: codeOf(error) }
    const fields = await item.settle((tx, row) => fail(tx, { services, entity: row, claim, error }), noteOf(failed))
    return { ...failed, decision: 'abandoned', ...fields }
  }
  const delayMs = retry.delayMs(claim.failures)
  const retried = { outcome: 'retry', code: codeOf(error) }
  await item.requeue(delayMs, true, noteOf(retried))
  return { ...retried, decision: 'retry', next_ms: delayMs }
}
