import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { injectFault } from '../base/fault-injection.ts'
import { formatVersionOf, NewerFormatError } from '../base/format-versions.ts'
import { exclusiveLoop } from '../base/loop.ts'
import { leasesLost, type Slots } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import { databaseErrorKind } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import type { Fragment } from '../db/sql.ts'
import { withTenant } from '../db/tenant-context.ts'
import { withTriggerChain } from '../db/trigger-chain.ts'
import { withSlotHolder } from '../net/hanging-calls.ts'
import {
  queueMessage as buildMessage,
  isReadable,
  messageTriggerChain,
  NO_PROJECT,
  type Queue,
  type Queues,
} from '../queues/queue.ts'
import { type AcquiredSlot, type Handler, type JobContext, type QueueSlots, RequeueError } from './handler.ts'
import {
  claimMessages,
  completeMessages,
  completionCte,
  lostClaimOf,
  type MessageClaim,
  maxLossesOf,
  requeueMessages,
  requeueUnheld,
} from './message-claims.ts'
import { type ActiveMessage, MessageOutcomes } from './message-outcomes.ts'
import { ProjectSlots } from './project-slots.ts'

/** An attempt at a claimed message in this process. */
type Attempt = ActiveMessage & {
  /** `running`: in the handler; `settling`: outcome being recorded; `over`: recorded, requeued or lost. */
  state: 'running' | 'settling' | 'over'
  abort: AbortController
  /** Completion by the handler itself: `pending` until the commit is confirmed. */
  completion: 'none' | 'pending' | 'committed'
  /** Number of active `releaseSlotWhile` calls. */
  waits: number
  /** Called when the handler waits for other messages. */
  onWait: (() => void) | undefined
  /** `unknown`: not renewed for the length of the lease because the database was unavailable. */
  lease: 'held' | 'lost' | 'unknown'
}

/** Delay of the next claim when other workers are claiming all messages found. */
const CONTENDED_MS = 20

/** Time that a handler has after the hard stop before its message is requeued. */
const HARD_STOP_MS = 1000

/** Default delay of a message requeued by its handler, so that a handler which always requeues does not spin. */
const REQUEUE_DELAY_MS = 1000

/** Bounds of the delay when the database failed the attempt: half of the time for which it has failed all attempts. */
const UNAVAILABLE_DELAY_MS = { min: 200, max: 5000 }

/** Completions that may be unrecorded before the consumer pauses claiming. */
const UNSETTLED_PER_SLOT = 4
const MIN_UNSETTLED = 200

/**
 * Consumes one queue: claims messages for the free slots of its handler, renews their leases and records their
 * outcomes. Slots are independent: a slow message occupies one slot only. A consumer without messages waits until it is
 * woken (poller.ts) or until its next own retry is due.
 */
export class QueueConsumer {
  readonly #services: Services
  readonly #handler: Handler
  readonly #preload: Fragment | undefined
  readonly #queue: Queue<any>
  readonly #queues: Queues
  readonly #outcomes: MessageOutcomes
  readonly #log: Logger
  readonly #stopping: AbortSignal
  readonly #slots: ProjectSlots
  readonly #batch: number
  readonly #notificationsHealthy: () => boolean
  readonly #tryAcquireSlotOf: JobContext['tryAcquireSlot']

  /** Claimed messages that are not over, by message ID. */
  readonly #attempts = new Map<string, Attempt>()
  /** Claimed messages whose handling has not begun. */
  readonly #claimed = new Set<string>()
  /** Messages left to the end of their lease, with the time. */
  readonly #left = new Map<string, number>()
  /** Messages of each slot with a running handler. */
  readonly #handled = new Set<readonly Attempt[]>()
  #unsettled = 0
  /** Whether the process runs a suspect (quarantine.ts): nothing is claimed. */
  #paused = false
  #claiming = false
  #woken = false
  #wake: (() => void) | undefined
  #nextDue = Number.POSITIVE_INFINITY
  #lastProject = ''
  #renewal: NodeJS.Timeout | undefined
  #takingOver = false
  #loop: Promise<void> | undefined
  readonly #hardStop = new AbortController()
  #requeuedCount = 0
  /** Start of the current series of attempts that all failed because the database was unavailable. */
  #unavailableSince: number | undefined
  /** Whether a released slot must wake the claim loop. */
  #waitsForSlot = false
  /** Whether a recorded completion must wake the claim loop. */
  #waitsForCompletions = false
  /** Whether, as of the last claim, messages may wait for active messages with the same key. */
  #othersWait = true
  /** Time when a message of this consumer was last over. */
  #overAt = 0

  constructor(options: {
    services: Pick<Services, 'queues' | 'log' | 'config'>
    handler: Handler
    stopping: AbortSignal
    slots: QueueSlots
    /** Whether notifications arrive. */
    notificationsHealthy: () => boolean
    tryAcquireSlotOf: JobContext['tryAcquireSlot']
  }) {
    const { handler, services } = options
    this.#services = services as Services
    this.#handler = handler
    this.#preload = handler.preload?.()
    const leaseSeconds = handler.leaseSeconds?.(services.config) ?? handler.queue.leaseSeconds
    this.#queue = { ...handler.queue, leaseSeconds }
    this.#queues = services.queues
    this.#outcomes = new MessageOutcomes(this.#services, handler, this.#queue)
    this.#log = services.log
    this.#stopping = options.stopping
    this.#batch = handler.batch ?? 1
    this.#slots = new ProjectSlots(options.slots, {
      batch: this.#batch,
      onReleased: () => {
        if (this.#waitsForSlot) this.claimNow()
      },
    })
    this.#notificationsHealthy = options.notificationsHealthy
    this.#tryAcquireSlotOf = options.tryAcquireSlotOf
  }

  get queue(): Queue<any> {
    return this.#queue
  }

  /** Lost workers after which a message fails, if it was alone in the last one. */
  get maxLosses(): number {
    return maxLossesOf(this.#handler)
  }

  get running(): number {
    return [...this.#attempts.values()].filter(attempt => attempt.state === 'running').length
  }

  /** Slot usage. A slot whose handler still runs after its claims were lost is held but not working. */
  get slots(): Slots {
    const isWorking = (attempts: readonly Attempt[]) =>
      attempts[0].waits === 0 && attempts.some(({ state, lease }) => state !== 'over' && lease !== 'lost')
    const working = [...this.#handled].filter(isWorking).length + this.#slots.acquired
    return { queue: this.#queue.name, total: this.#slots.total, held: this.#slots.used, working }
  }

  start(): void {
    this.#loop = this.#run()
    const periodMs = (this.#queue.leaseSeconds * 1000) / 3
    this.#renewal = setInterval(
      exclusiveLoop('lease renewal', { periodMs, log: this.#log }, () => this.#renew()),
      periodMs,
    )
  }

  /**
   * Acquires a free slot for work of a project without a message, under the limits of a claim. Returns null without a
   * free slot.
   */
  tryAcquireSlot(project: string): AcquiredSlot | null {
    return this.#paused ? null : this.#slots.tryAcquire(project)
  }

  /** Stops or resumes claiming. */
  pause(paused: boolean): void {
    if (this.#paused === paused) return
    this.#paused = paused
    if (!paused) this.claimNow()
  }

  /** Whether no message is in progress or being claimed, except waiting ones and those with the given IDs. */
  isIdle(except: ReadonlySet<string>): boolean {
    const attempts = [...this.#attempts.values()]
    // An attempt that waits for other messages does not end before they do, which nothing may claim meanwhile.
    return (
      !this.#claiming && this.#slots.acquired === 0 && attempts.every(({ id, waits }) => waits > 0 || except.has(id))
    )
  }

  /** Whether no message is in progress or being claimed. */
  isEmpty(): boolean {
    return !this.#claiming && this.#slots.acquired === 0 && this.#attempts.size === 0
  }

  /**
   * Runs a claimed suspect, even without a free slot; requeues it if the process stops. Resolves with true when its handler
   * has ended, with false when it waits for other messages.
   */
  async runSuspect(claim: MessageClaim): Promise<boolean> {
    if (this.#stopping.aborted) await this.#requeueClaims([claim])
    else if ((await this.#promoteDelayed([claim])).length > 0)
      return new Promise(resolve => {
        void this.#startSlot([claim], () => resolve(false)).finally(() => resolve(true))
      })
    return true
  }

  /** Takes over messages whose lease has expired, and claims if some are due again. */
  async takeOverExpired(): Promise<void> {
    if (this.#takingOver) return
    this.#takingOver = true
    try {
      if (await this.#outcomes.takeOverExpired()) this.claimNow()
    } catch (error) {
      this.#log.error({ err: error, queue: this.#queue.name }, 'takeover of expired messages failed')
    } finally {
      this.#takingOver = false
    }
  }

  /** IDs of the messages that this process has, or leaves to the end of their lease. */
  get heldIds(): string[] {
    const since = performance.now() - 2000 * this.#queue.leaseSeconds
    for (const [id, leftAt] of this.#left) if (leftAt < since) this.#left.delete(id)
    return [...this.#attempts.keys(), ...this.#claimed, ...this.#left.keys()]
  }

  /** Requeues messages that this process claimed without receiving the answer. */
  async returnUnheld(): Promise<void> {
    const isHeld = (id: string) => this.#attempts.has(id) || this.#claimed.has(id) || this.#left.has(id)
    try {
      const ids = await requeueUnheld(this.#queues.db, this.#queue, isHeld)
      if (ids.length === 0) return
      this.#log.warn({ queue: this.#queue.name, jobs: ids }, 'messages of a lost claim requeued')
      this.#queues.wake(this.#queue.name, 'now')
      this.claimNow()
    } catch (error) {
      this.#log.error({ err: error, queue: this.#queue.name }, 'requeue of a lost claim failed')
    }
  }

  /** Wakes the claim loop, because messages may be due. */
  claimNow(): void {
    this.#woken = true
    this.#wake?.()
  }

  /** Stops the claim loop; see Workers.stop. The caller aborts the `stopping` signal before. */
  async stop(workersMs: number, mostMs = Number.POSITIVE_INFINITY): Promise<number> {
    const graceMs = Math.min(this.#handler.graceMs?.(this.#services.config) ?? workersMs, mostMs)
    const deadline = performance.now() + graceMs
    this.claimNow()
    // A claim that hangs on a lost connection must not delay the stop; messages it still claims are requeued.
    await Promise.race([this.#loop, sleep(Math.max(graceMs, 1000), undefined, { ref: false })])
    while (this.#attempts.size > 0 && performance.now() < deadline) await this.#waitForWake(deadline)

    this.#hardStop.abort()
    for (const attempt of this.#attempts.values()) attempt.abort.abort(new Error('worker stopped'))
    const last = performance.now() + HARD_STOP_MS
    while (this.#attempts.size > 0 && performance.now() < last) await this.#waitForWake(last)

    clearInterval(this.#renewal)
    const unfinished = [...this.#attempts.values()]
    return this.#requeuedCount + (unfinished.length > 0 ? await this.#requeue(unfinished) : 0)
  }

  /** Waits for a wake-up or until `deadline` (performance.now). */
  async #waitForWake(deadline: number): Promise<void> {
    if (!this.#woken) {
      let timer: NodeJS.Timeout | undefined
      await new Promise<void>(resolve => {
        this.#wake = resolve
        if (deadline < Number.POSITIVE_INFINITY)
          timer = setTimeout(resolve, Math.max(0, Math.min(deadline - performance.now(), 2 ** 31 - 1)))
      })
      clearTimeout(timer)
      this.#wake = undefined
    }
    this.#woken = false
  }

  async #run(): Promise<void> {
    let failures = 0
    while (!this.#stopping.aborted) {
      const { free } = this.#slots
      const isCongested = this.#unsettled > this.#slots.total * this.#batch * UNSETTLED_PER_SLOT + MIN_UNSETTLED
      if (free <= 0 || isCongested || this.#paused) {
        this.#waitsForSlot = free <= 0
        this.#waitsForCompletions = isCongested
        await this.#waitForWake(Number.POSITIVE_INFINITY)
        continue
      }
      this.#waitsForCompletions = false
      // A claim omits projects that are at their share when it begins, so a slot released meanwhile requires another
      // claim.
      this.#waitsForSlot = this.#slots.byProject.size > 0
      this.#woken = false
      this.#claiming = true
      try {
        const claimsAgain = await this.#claimAndStart(free)
        if (failures > 0) this.#log.info({ queue: this.#queue.name }, 'queue recovered')
        failures = 0
        if (claimsAgain) continue
      } catch (error) {
        failures += 1
        if (failures === 1) this.#log.error({ err: error, queue: this.#queue.name }, 'queue unreachable')
        this.#claiming = false
        await this.#waitForWake(performance.now() + Math.min(100 * 2 ** failures, 5000))
        continue
      } finally {
        this.#claiming = false
      }
      const due = this.#nextDue
      await this.#waitForWake(due)
      if (performance.now() >= due) this.#nextDue = Number.POSITIVE_INFINITY
    }
  }

  /** Fills free slots with one claim. Returns whether to claim again immediately. */
  async #claimAndStart(free: number): Promise<boolean> {
    const request = {
      limit: this.#batch > 1 ? this.#batch : free,
      last: this.#lastProject,
      held: this.#slots.byProject,
      share: this.#slots.share,
      borrow: Math.max(0, this.#slots.borrow - this.#slots.used),
      preload: this.#preload,
    }
    const claimedAt = performance.now()
    const claims = await claimMessages(this.#queues.db, this.#queue, request)
    if (!claims) return true
    this.#lastProject = claims.last
    this.#othersWait = claims.othersWait
    // Others may have waited for a message that ended during the claim.
    const keyReleased = this.#queue.policy === 'stately' && claims.othersWait && this.#overAt >= claimedAt
    const claimed = claims.jobs.map(({ id }) => id)
    for (const id of claimed) this.#claimed.add(id)
    try {
      const jobs = await this.#filterHandled([...claims.jobs])
      if (this.#batch > 1) {
        if (jobs.length > 0) void this.#startSlot(jobs)
      } else {
        for (const job of jobs) void this.#startSlot([job])
      }
    } finally {
      for (const id of claimed) this.#claimed.delete(id)
    }
    // The released slot of a project at its share may be filled by the same project.
    this.#waitsForSlot =
      this.#slots.free > 0 && [...this.#slots.byProject.values()].some(held => held >= this.#slots.share)
    if (claims.more && claims.jobs.length === 0) this.#dueAt(performance.now() + CONTENDED_MS)
    return keyReleased || (claims.more && claims.jobs.length > 0)
  }

  /** Returns the claimed messages to handle; requeues excess and unreadable ones and replaces delayed wake-ups. */
  async #filterHandled(claimed: MessageClaim[]): Promise<MessageClaim[]> {
    if (claimed.length === 0) return claimed
    if (this.#stopping.aborted) {
      await this.#requeueClaims(claimed)
      return []
    }
    const jobs = await this.#leaveUnreadable(claimed)
    // Slots may have been acquired during the claim.
    const excess = this.#batch === 1 ? jobs.splice(Math.max(0, this.#slots.free)) : []
    if (excess.length > 0) await this.#requeueClaims(excess)
    return this.#promoteDelayed(jobs)
  }

  /** Leaves claimed messages in a later version to workers of that release. Returns the others. */
  async #leaveUnreadable(jobs: MessageClaim[]): Promise<MessageClaim[]> {
    const unreadable = jobs.filter(({ data }) => !isReadable(this.#queue, data))
    if (unreadable.length === 0) return jobs
    await this.#outcomes.leave(unreadable, { signal: this.#hardStop.signal, ended: false })
    return jobs.filter(job => !unreadable.includes(job))
  }

  /** Replaces delayed wake-ups, which are due, by immediate ones under the keys of their entities. Returns the other messages. */
  async #promoteDelayed(jobs: MessageClaim[]): Promise<MessageClaim[]> {
    if (!this.#queue.key) return jobs
    const delayed = jobs.filter(job => job.key !== this.#queue.key!(job.data))
    if (delayed.length > 0) await retryWhileUnavailable(() => this.#promote(delayed), { signal: this.#hardStop.signal })
    return jobs.filter(job => !delayed.includes(job))
  }

  /** Requeues claimed messages whose handling has not begun. */
  async #requeueClaims(claims: MessageClaim[]): Promise<void> {
    const requeue = () => requeueMessages(this.#queues.db, this.#queue, claims, 0)
    await retryWhileUnavailable(requeue, { signal: this.#hardStop.signal })
    this.#queues.wake(this.#queue.name, 'now')
  }

  async #promote(delayed: MessageClaim[]): Promise<void> {
    // The content of each message stays in its version, which may be an earlier one than the queue has.
    const immediate = delayed.map(({ data }) =>
      buildMessage({ ...this.#queue, version: formatVersionOf(data) }, data, { chain: messageTriggerChain(data) }),
    )
    await this.#queues.transaction(async tx => {
      await this.#queues.insert(tx, immediate)
      await completeMessages(tx, this.#queue, delayed)
    })
    this.#queues.wake(this.#queue.name, 'now')
    this.claimNow()
  }

  #dueAt(time: number): void {
    this.#nextDue = Math.min(this.#nextDue, time)
  }

  #startSlot(jobs: MessageClaim[], onWait?: () => void): Promise<void> {
    const now = performance.now()
    const attempts = jobs.map(
      (job): Attempt => ({
        ...job,
        startedAt: now,
        heldSince: now,
        completion: 'none',
        waits: 0,
        onWait,
        lease: 'held',
        state: 'running',
        abort: new AbortController(),
      }),
    )
    this.#slots.change(attempts[0].project, 1)
    this.#handled.add(attempts)
    for (const attempt of attempts) this.#attempts.set(attempt.id, attempt)
    const handling = this.#handler.batch ? this.#handleBatch(attempts) : this.#handleOne(attempts[0])
    return handling
      .catch(error => this.#log.error({ err: error, queue: this.#queue.name }, 'attempt recording failed'))
      .finally(() => {
        this.#slots.change(attempts[0].project, -1)
        this.#handled.delete(attempts)
        if (this.#waitsForSlot) this.claimNow()
      })
  }

  /** Releases the slot of an attempt while any `work` of it waits for other messages. */
  async #releaseSlotWhile<T>(attempt: Attempt, work: () => Promise<T>): Promise<T> {
    attempt.onWait?.()
    this.#changeWaits(attempt, 1)
    try {
      return await work()
    } finally {
      this.#changeWaits(attempt, -1)
    }
  }

  /** Runs the handler of an attempt of a project with its slot, which hanging calls release. */
  #withHolder(attempt: Attempt, work: () => Promise<unknown>): Promise<unknown> {
    const { project } = attempt
    if (project === null || project === NO_PROJECT) return work()
    return withSlotHolder(
      this.#slots.holderOf(project, change => this.#changeWaits(attempt, change)),
      work,
    )
  }

  /** Releases the slot of an attempt while the number of its waits is above 0. */
  #changeWaits(attempt: Attempt, change: 1 | -1): void {
    const before = attempt.waits
    attempt.waits += change
    if (before !== 0 && attempt.waits !== 0) return
    this.#slots.change(attempt.project, change === 1 ? -1 : 1)
    if (change === 1 && this.#waitsForSlot) this.claimNow()
  }

  async #handleOne(attempt: Attempt): Promise<void> {
    const { context, delay } = this.#context(attempt, attempt.abort.signal)
    try {
      const tenant = attempt.project === NO_PROJECT ? null : attempt.project
      const tenantContext = { tenant, patienceMs: Number.POSITIVE_INFINITY, work: this.#queue.name }
      await withTriggerChain(messageTriggerChain(attempt.data), () =>
        withTenant(tenantContext, async () => {
          await injectFault(this.#services, 'message_started', () => JSON.stringify(attempt.data))
          await this.#withHolder(attempt, () => this.#handler.handle(this.#parse(attempt), context))
        }),
      )
    } catch (error) {
      return this.#onFailed(attempt, error, delay())
    }
    this.#onReturned(attempt)
  }

  /** Handles a batch, grouped by trigger chain, which applies to all effects of a call. */
  async #handleBatch(attempts: Attempt[]): Promise<void> {
    const chainOf = ({ data }: Attempt) => messageTriggerChain(data) ?? []
    for (const group of Map.groupBy(attempts, attempt => chainOf(attempt).join()).values()) {
      // Attempts may have been aborted, by a lost lease or a hard stop, while a previous group was handled.
      const isActive = ({ abort }: Attempt) => !abort.signal.aborted
      const active = group.filter(isActive)
      for (const attempt of group)
        if (!isActive(attempt)) await this.#onFailed(attempt, attempt.abort.signal.reason, undefined)
      if (active.length > 0) await withTriggerChain(chainOf(active[0]), () => this.#handleGroup(active))
    }
  }

  async #handleGroup(attempts: Attempt[]): Promise<void> {
    const signal = AbortSignal.any(attempts.map(attempt => attempt.abort.signal))
    const { context } = this.#context(attempts[0], signal)
    try {
      await this.#handler.handle(
        attempts.map(attempt => this.#parse(attempt)),
        context,
      )
    } catch (error) {
      const isUnavailable = databaseErrorKind(error) === 'unavailable'
      if (attempts.length === 1 || isUnavailable || error instanceof RequeueError || this.#hardStop.signal.aborted) {
        await Promise.all(attempts.map(attempt => this.#onFailed(attempt, error, undefined)))
        return
      }
      for (const attempt of attempts) {
        if (attempt.abort.signal.aborted) {
          await this.#onFailed(attempt, error, undefined)
          continue
        }
        const single = this.#context(attempt, attempt.abort.signal)
        try {
          await this.#handler.handle([this.#parse(attempt)], single.context)
          this.#onReturned(attempt)
        } catch (failure) {
          await this.#onFailed(attempt, failure, single.delay())
        }
      }
      return
    }
    for (const attempt of attempts) this.#onReturned(attempt)
  }

  #parse(attempt: MessageClaim): object {
    return this.#queue.message.parse(attempt.data)
  }

  #context(attempt: Attempt, signal: AbortSignal): { context: JobContext; delay: () => number | undefined } {
    let delay: number | undefined
    const number = attempt.retryCount + 1
    const { name } = this.#queue
    const log = this.#log
    return {
      delay: () => delay,
      context: {
        services: this.#services,
        attempt: number,
        last: attempt.retryCount >= attempt.retryLimit,
        id: attempt.id,
        lostClaim: lostClaimOf(attempt),
        signal,
        preloaded: attempt.preloaded ?? null,
        stopping: this.#stopping,
        get log() {
          return log.child({ queue: name, job: attempt.id, attempt: number })
        },
        retryIn: ms => {
          delay = ms
        },
        complete: outbox => {
          // From now on a failed renewal may mean completion, not a lost lease.
          attempt.completion = 'pending'
          outbox.alongside(guard => completionCte(this.#queue, attempt, guard))
          outbox.afterCommit(() => {
            attempt.completion = 'committed'
          })
        },
        releaseSlotWhile: work => this.#releaseSlotWhile(attempt, work),
        tryAcquireSlot: this.#tryAcquireSlotOf,
      },
    }
  }

  /** Records the completion of an attempt, batched with others. The slot is released without waiting for it. */
  #onReturned(attempt: Attempt): void {
    if (attempt.state === 'over') return
    this.#unavailableSince = undefined
    const duration = performance.now() - attempt.startedAt
    if (attempt.completion === 'committed') {
      this.#outcomes.reportDone(attempt, duration)
      this.#markOver(attempt)
      return
    }
    if (attempt.lease !== 'held') return void this.#stopExpired(attempt)
    attempt.state = 'settling'
    this.#unsettled += 1
    void this.#outcomes.complete(attempt).then(completed => {
      this.#unsettled -= 1
      if (this.#waitsForCompletions) this.claimNow()
      if (attempt.state === 'over') return
      // A pending completion by the handler was committed, although the response to the commit was lost.
      if (completed || attempt.completion === 'pending') this.#outcomes.reportDone(attempt, duration)
      else this.#loseLease(attempt)
      this.#markOver(attempt)
    })
  }

  async #onFailed(attempt: Attempt, error: unknown, delay: number | undefined): Promise<void> {
    if (attempt.state === 'over') return
    if (attempt.completion === 'committed') {
      this.#log.error({ err: error, queue: this.#queue.name, job: attempt.id }, 'handler failed after completion')
      return this.#onReturned(attempt)
    }
    if (error instanceof RequeueError || this.#hardStop.signal.aborted) {
      const requeued = await this.#requeue([attempt], this.#stopping.aborted ? 0 : (delay ?? REQUEUE_DELAY_MS))
      this.#requeuedCount += requeued
      return
    }
    if (attempt.lease !== 'held') return this.#stopExpired(attempt)
    if (error instanceof NewerFormatError) {
      attempt.state = 'settling'
      await this.#outcomes.leave([attempt], { signal: this.#hardStop.signal, ended: !this.#stopping.aborted })
      return this.#markOver(attempt)
    }
    if (databaseErrorKind(error) === 'unavailable') {
      await this.#requeue([attempt], this.#stopping.aborted ? 0 : this.#unavailableDelayMs(), error)
      return
    }
    attempt.state = 'settling'
    const { lost, dueInMs, left } = await this.#outcomes.fail(attempt, error, delay)
    if (left) this.#left.set(attempt.id, performance.now())
    if (lost) this.#loseLease(attempt)
    if (dueInMs !== undefined) {
      this.#dueAt(performance.now() + dueInMs + 1)
      this.claimNow()
    }
    this.#markOver(attempt)
  }

  #unavailableDelayMs(): number {
    const now = performance.now()
    this.#unavailableSince ??= now
    const halfMs = (now - this.#unavailableSince) / 2
    return Math.min(Math.max(halfMs, UNAVAILABLE_DELAY_MS.min), UNAVAILABLE_DELAY_MS.max)
  }

  /** Ends an attempt whose lease is lost, which another worker records, or unknown: then the message is requeued. */
  async #stopExpired(attempt: Attempt): Promise<void> {
    if (attempt.lease === 'unknown') await this.#requeue([attempt])
    else this.#markOver(attempt)
  }

  async #requeue(attempts: Attempt[], delayMs = 0, err?: unknown): Promise<number> {
    for (const attempt of attempts) attempt.state = 'settling'
    const { signal } = this.#hardStop
    const ended = !this.#stopping.aborted
    const ids = await this.#outcomes.requeue(attempts, { delayMs, err, signal, ended })
    for (const attempt of attempts) this.#markOver(attempt)
    return ids.size
  }

  #markOver(attempt: Attempt): void {
    attempt.state = 'over'
    if (this.#attempts.get(attempt.id) === attempt) this.#attempts.delete(attempt.id)
    this.#overAt = performance.now()
    // A new wake-up of the same entity may have waited for the end of this message.
    const mayHaveWaited = this.#queue.policy === 'stately' && (this.#othersWait || !this.#notificationsHealthy())
    if (mayHaveWaited || this.#stopping.aborted) this.claimNow()
  }

  #loseLease(attempt: Attempt, lease: 'lost' | 'unknown' = 'lost'): void {
    attempt.lease = lease
    leasesLost.inc({ queue: this.#queue.name })
    this.#log.warn({ queue: this.#queue.name, job: attempt.id, attempt: attempt.retryCount + 1 }, 'lease lost')
    attempt.abort.abort(new Error('lease lost'))
  }

  /** Renews the leases of all attempts, and aborts attempts whose claim is lost. */
  async #renew(): Promise<void> {
    const leased = [...this.#attempts.values()].filter(
      attempt => attempt.state !== 'over' && attempt.completion !== 'committed',
    )
    if (leased.length === 0) return
    const sentAt = performance.now()
    let renewed: Set<string> | undefined
    try {
      const result = await this.#queues.boss.touch(
        this.#queue.name,
        leased.map(({ id, retryCount }) => ({ id, retryCount })),
      )
      renewed = new Set((result as { settled?: string[] }).settled)
    } catch (error) {
      this.#log.error({ err: error, queue: this.#queue.name }, 'lease renewal failed')
    }
    for (const attempt of leased) {
      if (renewed?.has(attempt.id)) attempt.heldSince = sentAt
      else if (
        attempt.state === 'running' &&
        attempt.completion === 'none' &&
        !attempt.abort.signal.aborted &&
        (renewed || this.#outcomes.isLeaseExpired(attempt))
      ) {
        this.#loseLease(attempt, renewed ? 'lost' : 'unknown')
      }
    }
  }
}
