import { setTimeout as sleep } from 'node:timers/promises'
import { storableText, truncateChars } from '../api/storable-text.ts'
import { retryPause, retryWhileUnavailable } from '../db/retry.ts'
import { messageAttempts as attemptsTotal } from '../process/metrics.ts'
import type { Services } from '../process/services.ts'
import type { Handler } from './handler.ts'
import {
  completeMessages,
  type MessageClaim,
  requeueMessages,
  scheduleRetry,
  takeOverExpired,
} from './message-claims.ts'
import { isSentAnew, type Queue } from './queue.ts'

type Outcome = 'done' | 'retry' | 'dead' | 'dropped' | 'handed_back'

/** A message that this process tries. */
export type ActiveMessage = MessageClaim & {
  startedAt: number
  /** When the lease was last renewed for certain, by this process's clock. */
  heldSince: number
}

/** What became of a failed attempt. `dueInMs` when it is tried again; nothing of it could be recorded when `lost`. */
export type FailureRecord = { lost: boolean; dueInMs?: number }

/** Records what became of the messages of one queue, with one log line an attempt. */
export class MessageOutcomes {
  readonly #services: Services
  readonly #handler: Handler
  readonly #queue: Queue<any>
  #completions: { attempt: ActiveMessage; done: (settled: boolean) => void }[] = []
  #completing = false

  /** @param queue the handler's, with the lease of this deployment */
  constructor(services: Services, handler: Handler, queue: Queue<any>) {
    this.#services = services
    this.#handler = handler
    this.#queue = queue
  }

  /** Records a completion together with others; `done` gets whether the attempt was still ours. */
  complete(attempt: ActiveMessage, done: (settled: boolean) => void): void {
    this.#completions.push({ attempt, done })
    if (!this.#completing) void this.#complete()
  }

  /** One statement at a time; what finishes meanwhile goes with the next. */
  async #complete(): Promise<void> {
    const { queues, log } = this.#services
    this.#completing = true
    // Handlers that finish in the same turn of the event loop share the first statement too.
    await new Promise(resolve => setImmediate(resolve))
    let failures = 0
    while (this.#completions.length > 0) {
      const batch = this.#completions.splice(0, 1000)
      try {
        const settled = await completeMessages(
          queues.db,
          this.#queue,
          batch.map(({ attempt }) => attempt),
        )
        for (const { attempt, done } of batch) done(settled.has(attempt.id))
        failures = 0
      } catch (error) {
        failures += 1
        if (failures === 1) log.error({ err: error, queue: this.#queue.name }, 'completion not recorded yet')
        for (const item of batch) {
          if (this.leaseOver(item.attempt)) item.done(false)
          else this.#completions.push(item)
        }
        await sleep(retryPause(failures))
      }
    }
    this.#completing = false
  }

  /**
   * Has a failed attempt tried again, or makes it a dead letter after its last try, unless a schedule sends it anew.
   * @param delayMs delay before the next try, in place of the queue's rule
   */
  async fail(attempt: ActiveMessage, error: unknown, delayMs: number | undefined): Promise<FailureRecord> {
    const duration = performance.now() - attempt.startedAt
    const output = describe(error)
    if (attempt.retryCount < attempt.retryLimit) {
      const dueInMs = delayMs ?? this.#retryDelay(attempt.retryCount)
      const { db } = this.#services.queues
      const result = await this.#persist(attempt, () => scheduleRetry(db, this.#queue, attempt, dueInMs, output))
      if (result === 'lost' || result === undefined) return { lost: true }
      this.#services.queues.wake(this.#queue.name, 'later')
      this.#report(attempt, 'retry', duration, { err: error, next_ms: Math.round(dueInMs) })
      return { lost: false, dueInMs }
    }
    // When it could not be recorded the lease runs out, and another worker records it.
    if (!(await this.#exhausted(attempt, error))) return { lost: false }
    if (!(await this.#persist(attempt, () => this.#deadLetter(attempt, output)))) return { lost: true }
    this.#report(attempt, this.#last, duration, { err: error })
    return { lost: false }
  }

  /**
   * Requeues messages, due again in `delayMs`, without counting the attempt; `err` is why, for its log line. While the
   * database is unavailable it is tried again until `signal` is aborted. Returns the ids that were requeued; the leases of the
   * others run out.
   */
  async requeue(
    attempts: ActiveMessage[],
    { delayMs, err, signal }: { delayMs: number; err?: unknown; signal: AbortSignal },
  ): Promise<ReadonlySet<string>> {
    const { queues, log } = this.#services
    let ids = new Set<string>()
    try {
      const back = () => requeueMessages(queues.db, this.#queue, attempts, delayMs)
      ids = new Set(await retryWhileUnavailable(back, { signal, withinMs: Number.POSITIVE_INFINITY }))
      if (ids.size > 0) queues.wake(this.#queue.name, delayMs > 0 ? 'later' : 'now')
    } catch (error) {
      log.error({ err: error, queue: this.#queue.name }, 'messages not given back')
    }
    for (const attempt of attempts)
      if (ids.has(attempt.id))
        this.#report(attempt, 'handed_back', performance.now() - attempt.startedAt, { next_ms: delayMs, err })
    return ids
  }

  /**
   * Settles messages whose worker was silent for a lease: another try now, or the end of their tries.
   * @returns whether some are due now
   */
  async takeOverExpired(): Promise<boolean> {
    const { queues, log } = this.#services
    let taken: MessageClaim[]
    try {
      taken = await takeOverExpired(queues.db, this.#queue)
    } catch {
      return false
    }
    const error = new Error('lease expired')
    let due = false
    for (const message of taken) {
      try {
        if (message.retryCount < message.retryLimit) {
          const result = await scheduleRetry(queues.db, this.#queue, message, 0, describe(error))
          queues.wake(this.#queue.name, 'later')
          if (result !== 'lost') this.#report(message, 'retry', undefined, { reason: 'lease_expired', next_ms: 0 })
          due = true
        } else {
          await this.#exhausted(message, error)
          const dead = await this.#deadLetter(message, describe(error))
          if (dead) this.#report(message, this.#last, undefined, { reason: 'lease_expired' })
        }
      } catch (failure) {
        log.error({ err: failure, queue: this.#queue.name, job: message.id }, 'expired message not taken over')
      }
    }
    return due
  }

  leaseOver({ heldSince }: ActiveMessage): boolean {
    return performance.now() - heldSince > this.#queue.leaseSeconds * 1000
  }

  /** The line of an attempt that was completed. */
  reportDone(attempt: ActiveMessage, duration: number): void {
    this.#report(attempt, 'done', duration)
  }

  /** Returns whether the failure is recorded on the entity. */
  async #exhausted(attempt: MessageClaim, error: unknown): Promise<boolean> {
    const { onExhausted } = this.#handler
    try {
      await retryWhileUnavailable(
        async () => onExhausted?.(this.#queue.message.parse(attempt.data), error, this.#services),
        { withinMs: this.#queue.leaseSeconds * 1000 },
      )
      return true
    } catch (failure) {
      const { log } = this.#services
      log.error({ err: failure, queue: this.#queue.name, job: attempt.id }, 'exhausted message not recorded')
      return false
    }
  }

  async #deadLetter({ id, retryCount }: MessageClaim, output: object): Promise<boolean> {
    const result = await this.#services.queues.boss.fail(this.#queue.name, { id, retryCount }, output)
    return ((result as { affected?: number }).affected ?? 0) > 0
  }

  /** Runs a statement until it succeeds or the lease is over; undefined then. */
  async #persist<T>(attempt: ActiveMessage, work: () => Promise<T>): Promise<T | undefined> {
    const { log } = this.#services
    for (let failures = 1; ; failures++) {
      try {
        return await work()
      } catch (error) {
        if (failures === 1)
          log.error({ err: error, queue: this.#queue.name, job: attempt.id }, 'failure not recorded yet')
        if (this.leaseOver(attempt)) return undefined
        await sleep(retryPause(failures))
      }
    }
  }

  /** Delay of pg-boss's rule: doubles with each retry, with as much jitter as the doubled delay. */
  #retryDelay(retryCount: number): number {
    const { delaySeconds, backoff, maxDelaySeconds } = this.#queue.retry
    if (!backoff) return delaySeconds * 1000
    const seconds = Math.max(delaySeconds, 1) * 2 ** Math.min(16, retryCount) * (1 + Math.random())
    return Math.min(seconds, maxDelaySeconds ?? Number.POSITIVE_INFINITY) * 1000
  }

  /** What becomes of a message behind its last try. */
  get #last(): Outcome {
    return isSentAnew(this.#queue) ? 'dropped' : 'dead'
  }

  /** The one line of an attempt. */
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
    if (outcome !== 'done' && outcome !== 'handed_back') log.warn(line, 'attempt')
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

/** What is stored of an error: enough to understand a dead letter, bounded, without what jsonb cannot hold. */
function describe(error: unknown): object {
  const { name, code, message } = Object(error) as { name?: string; code?: unknown; message?: string }
  const text = truncateChars(String(message ?? error), 2000)
  return { name, code, message: storableText(text) }
}
