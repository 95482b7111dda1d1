import { setTimeout as sleep } from 'node:timers/promises'
import { AppError } from '../base/errors.ts'
import { NewerFormatError } from '../base/format-versions.ts'
import { messageAttempts as attemptsTotal } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import { storableText, truncateChars } from '../base/storable-text.ts'
import { Batcher } from '../db/batcher.ts'
import { retryPause, retryWhileUnavailable } from '../db/retry.ts'
import { isDroppedOnFailure, isReadable, type Queue } from '../queues/queue.ts'
import type { Handler } from './handler.ts'
import { lostMessageHooks } from './lost-messages.ts'
import {
  blockRetryOf,
  completeMessages,
  leaveMessages,
  type MessageClaim,
  maxLossesOf,
  ranAlone,
  requeueMessages,
  scheduleRetry,
  takeOverExpired,
  workerLosses,
} from './message-claims.ts'

type Outcome = 'done' | 'retry' | 'dead' | 'dropped' | 'requeued'

/** A message in progress in this process. */
export type ActiveMessage = MessageClaim & {
  startedAt: number
  /** Time of the last confirmed renewal of the lease (performance.now). */
  heldSince: number
}

/**
 * How a failure was recorded: `dueInMs` until the retry, `lost` if the claim was lost and nothing was recorded, `left` if
 * the end of the lease leaves it to another worker.
 */
export type FailureRecord = { lost: boolean; dueInMs?: number; left?: boolean }

/** Records the outcomes of the messages of one queue, with one log line per attempt. */
export class MessageOutcomes {
  readonly #services: Services
  readonly #handler: Handler
  readonly #queue: Queue<any>
  readonly #completions = new Batcher((attempts: ActiveMessage[]) => this.#recordCompletions(attempts))

  /** @param queue the handler's queue, with the lease of this deployment */
  constructor(services: Services, handler: Handler, queue: Queue<any>) {
    this.#services = services
    this.#handler = handler
    this.#queue = queue
  }

  /** Records a completion, batched with others. Returns false if the claim was lost. */
  complete(attempt: ActiveMessage): Promise<boolean> {
    return this.#completions.add(attempt)
  }

  async #recordCompletions(attempts: ActiveMessage[]): Promise<boolean[]> {
    const { queues, log } = this.#services
    let pending = attempts
    for (let failures = 1; pending.length > 0; failures++) {
      try {
        const completed = await completeMessages(queues.db, this.#queue, pending)
        return attempts.map(({ id }) => completed.has(id))
      } catch (error) {
        if (failures === 1) log.error({ err: error, queue: this.#queue.name }, 'completion recording failed, retrying')
        pending = pending.filter(attempt => !this.isLeaseExpired(attempt))
        await sleep(retryPause(failures))
      }
    }
    return attempts.map(() => false)
  }

  /**
   * Records a failed attempt: schedules a retry, or dead-letters or drops the message after its last attempt.
   * @param delayMs delay before the retry, in place of the queue's retry policy
   */
  async fail(attempt: ActiveMessage, error: unknown, delayMs: number | undefined): Promise<FailureRecord> {
    const duration = performance.now() - attempt.startedAt
    const output = describeFailure(error)
    if (attempt.retryCount < attempt.retryLimit) {
      const dueInMs = delayMs ?? this.#retryDelay(attempt.retryCount)
      const { db } = this.#services.queues
      const result = await this.#persist(attempt, () =>
        scheduleRetry(db, this.#queue, attempt, dueInMs, { error: output }),
      )
      if (result === 'lost' || result === undefined) return { lost: true }
      this.#services.queues.wake(this.#queue.name, 'later')
      this.#report(attempt, 'retry', duration, { err: error, next_ms: Math.round(dueInMs) })
      return { lost: false, dueInMs }
    }
    // Without a record the lease expires and another worker records the failure.
    if ((await this.#recordExhausted(attempt, error)) !== 'recorded') return { lost: false, left: true }
    if (!(await this.#persist(attempt, () => this.#deadLetter(attempt, output)))) return { lost: true }
    this.#report(attempt, this.#finalOutcome, duration, { err: error })
    return { lost: false }
  }

  /**
   * Requeues messages in `delayMs` without counting the attempt, and retries while the database is unavailable until
   * `signal` is aborted. `err` is the reason, for the log line. `ended`: whether their handler has ended while the process
   * continues. Returns the IDs of the requeued messages; the leases of the others expire.
   */
  async requeue(
    attempts: ActiveMessage[],
    { delayMs, err, signal, ended }: { delayMs: number; err?: unknown; signal: AbortSignal; ended: boolean },
  ): Promise<ReadonlySet<string>> {
    const { queues, log } = this.#services
    let ids = new Set<string>()
    try {
      const requeue = () => requeueMessages(queues.db, this.#queue, attempts, delayMs, { ended })
      ids = new Set(await retryWhileUnavailable(requeue, { signal, withinMs: Number.POSITIVE_INFINITY }))
      if (ids.size > 0) queues.wake(this.#queue.name, delayMs > 0 ? 'later' : 'now')
    } catch (error) {
      log.error({ err: error, queue: this.#queue.name }, 'message requeue failed')
    }
    for (const attempt of attempts)
      if (ids.has(attempt.id))
        this.#report(attempt, 'requeued', performance.now() - attempt.startedAt, { next_ms: delayMs, err })
    return ids
  }

  /**
   * Requeues messages that only a later release can handle, without counting the attempt, and logs each message once in the
   * deployment. Retries as `requeue`.
   */
  async leave(claims: MessageClaim[], { signal, ended }: { signal: AbortSignal; ended: boolean }): Promise<void> {
    const { queues, log } = this.#services
    try {
      const leave = () => leaveMessages(queues.db, this.#queue, claims, { ended })
      const left = await retryWhileUnavailable(leave, { signal, withinMs: Number.POSITIVE_INFINITY })
      if (left.size > 0) queues.wake(this.#queue.name, 'later')
      for (const claim of claims) {
        const count = left.get(claim.id)
        if (count === undefined) continue
        attemptsTotal.inc({ queue: this.#queue.name, outcome: 'requeued' })
        if (count === 1)
          log.warn(
            { queue: this.#queue.name, job: claim.id, message: idsOf(claim.data) },
            'message left to a worker of a later release',
          )
      }
    } catch (error) {
      log.error({ err: error, queue: this.#queue.name }, 'message requeue failed')
    }
  }

  /**
   * Takes over messages whose lease has expired: schedules an immediate retry, or records the failure after the last
   * attempt. What this release cannot read is failed by workers of a later one.
   * @returns whether messages are due now
   */
  async takeOverExpired(): Promise<boolean> {
    const { queues, log } = this.#services
    let expired: MessageClaim[]
    try {
      expired = await takeOverExpired(queues.db, this.#queue)
    } catch {
      return false
    }
    let due = false
    for (const message of expired) {
      const losses = workerLosses(message)
      const { boundsLosses } = this.#handler
      const maxLosses = maxLossesOf(this.#handler)
      const isCulprit = losses > maxLosses || (losses === maxLosses && ranAlone(message))
      const isLast = isCulprit || message.retryCount >= message.retryLimit
      if (isLast && !isReadable(this.#queue, message.data)) continue
      // A handler that bounds lost workers itself fails the work when it is claimed once more.
      const isPoison = isCulprit && (!boundsLosses || losses > maxLosses)
      const error = isPoison
        ? new AppError('WORKER_LOST', { meta: { queue: this.#queue.name } })
        : new Error('lease expired')
      try {
        if (losses > 0) log.warn({ queue: this.#queue.name, job: message.id, losses }, 'message lost with its worker')
        if (isCulprit) for (const onLost of lostMessageHooks.all()) await onLost(this.#services, this.#queue, message)
        if (message.retryCount < message.retryLimit && !isPoison) {
          const retry = { error: describeFailure(error), lost: true }
          const result = await scheduleRetry(queues.db, this.#queue, message, 0, retry)
          if (result === 'merged' && losses > 0) await blockRetryOf(queues.db, this.#queue, message)
          queues.wake(this.#queue.name, 'later')
          if (result !== 'lost') this.#report(message, 'retry', undefined, { reason: 'lease_expired', next_ms: 0 })
          due = true
        } else {
          if ((await this.#recordExhausted(message, error)) === 'unreadable') continue
          const isDead = await this.#deadLetter(message, describeFailure(error))
          if (isDead)
            this.#report(message, this.#finalOutcome, undefined, { reason: isPoison ? 'worker_lost' : 'lease_expired' })
        }
      } catch (failure) {
        log.error({ err: failure, queue: this.#queue.name, job: message.id }, 'takeover of expired message failed')
      }
    }
    return due
  }

  isLeaseExpired({ heldSince }: ActiveMessage): boolean {
    return performance.now() - heldSince > this.#queue.leaseSeconds * 1000
  }

  /** Logs and counts a completed attempt. */
  reportDone(attempt: ActiveMessage, duration: number): void {
    this.#report(attempt, 'done', duration)
  }

  /**
   * Calls `onExhausted`, which records the failure on the entity. `unreadable`: only a later release can, whose workers take
   * the message over too.
   */
  async #recordExhausted(attempt: MessageClaim, error: unknown): Promise<'recorded' | 'not recorded' | 'unreadable'> {
    const { onExhausted } = this.#handler
    try {
      await retryWhileUnavailable(
        async () => onExhausted?.(this.#queue.message.parse(attempt.data), error, this.#services),
        { withinMs: this.#queue.leaseSeconds * 1000 },
      )
      return 'recorded'
    } catch (failure) {
      if (failure instanceof NewerFormatError) return 'unreadable'
      const { log } = this.#services
      log.error({ err: failure, queue: this.#queue.name, job: attempt.id }, 'recording of exhausted message failed')
      return 'not recorded'
    }
  }

  async #deadLetter({ id, retryCount }: MessageClaim, output: object): Promise<boolean> {
    const result = await this.#services.queues.boss.fail(this.#queue.name, { id, retryCount }, output)
    return ((result as { affected?: number }).affected ?? 0) > 0
  }

  /** Repeats a statement until it succeeds. Returns undefined if the lease expires before. */
  async #persist<T>(attempt: ActiveMessage, work: () => Promise<T>): Promise<T | undefined> {
    const { log } = this.#services
    for (let failures = 1; ; failures++) {
      try {
        return await work()
      } catch (error) {
        if (failures === 1)
          log.error({ err: error, queue: this.#queue.name, job: attempt.id }, 'failure recording failed, retrying')
        if (this.isLeaseExpired(attempt)) return undefined
        await sleep(retryPause(failures))
      }
    }
  }

  /** Returns the delay of a retry as pg-boss computes it: doubled with each retry, with full jitter on top. */
  #retryDelay(retryCount: number): number {
    const { delaySeconds, backoff, maxDelaySeconds } = this.#queue.retry
    if (!backoff) return delaySeconds * 1000
    const seconds = Math.max(delaySeconds, 1) * 2 ** Math.min(16, retryCount) * (1 + Math.random())
    return Math.min(seconds, maxDelaySeconds ?? Number.POSITIVE_INFINITY) * 1000
  }

  /** Outcome of a failed last attempt. */
  get #finalOutcome(): Outcome {
    return isDroppedOnFailure(this.#queue) ? 'dropped' : 'dead'
  }

  /** Logs and counts an attempt. */
  #report(attempt: MessageClaim, outcome: Outcome, duration: number | undefined, more: object = {}): void {
    const { log } = this.#services
    attemptsTotal.inc({ queue: this.#queue.name, outcome })
    const line = {
      queue: this.#queue.name,
      job: attempt.id,
      message: idsOf(attempt.data),
      attempt: attempt.retryCount + 1,
      outcome,
      ...(duration === undefined ? {} : { duration_ms: Math.round(duration) }),
      ...more,
    }
    if (outcome !== 'done' && outcome !== 'requeued') log.warn(line, 'attempt')
    else log.info(line, 'attempt')
  }
}

function idsOf(data: object): Record<string, string> {
  const ids: Record<string, string> = {}
  for (const [name, value] of Object.entries(data)) {
    if (typeof value === 'string' && (name === 'id' || name.endsWith('_id'))) ids[name] = value
  }
  return ids
}

/** Returns the stored form of an error: bounded, and without characters that jsonb cannot store. */
function describeFailure(error: unknown): object {
  const { name, code, message } = Object(error) as { name?: string; code?: unknown; message?: string }
  const text = truncateChars(String(message ?? error), 2000)
  return { name, code, message: storableText(text) }
}
