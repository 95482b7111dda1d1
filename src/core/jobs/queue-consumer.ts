import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { databaseErrorKind } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { withTenant } from '../db/tenant-context.ts'
import { withTriggerChain } from '../db/trigger-chain.ts'
import { leasesLost, type Slots } from '../process/metrics.ts'
import type { Services } from '../process/services.ts'
import { type Handler, type JobContext, RequeueError } from './handler.ts'
import { claimMessages, completeMessages, completionCte, type MessageClaim, requeueMessages } from './message-claims.ts'
import { type ActiveMessage, MessageOutcomes } from './message-outcomes.ts'
import { queueMessage as buildMessage, messageTriggerChain, NO_PROJECT, type Queue, type Queues } from './queue.ts'

/** One claimed message in this process. */
type Attempt = ActiveMessage & {
  /** `running`: in the handler; `settling`: being recorded; `over`: recorded, given back or lost. */
  state: 'running' | 'settling' | 'over'
  abort: AbortController
  /** Completed by its handler, or about to be: `under_way` until the commit is known. */
  completion: 'none' | 'under_way' | 'committed'
  /** Pieces of its work that wait for other messages. */
  waits: number
  /** `unknown`: it has not been renewed for its length because the database was unavailable. */
  lease: 'held' | 'lost' | 'unknown'
}

/** When other workers are claiming everything that was found, the next claim waits so long. */
const CONTENDED_MS = 20

/** After the hard stop a handler has this long to leave before its message is given back. */
const LEAVE_MS = 1000

/** A message that its handler returned is due again after this time, so that one which always returns it does not spin. */
const HAND_BACK_MS = 1000

/** Least and longest such time where the database failed the attempt: half of the time for which it has failed them all. */
const UNAVAILABLE_MS = { least: 200, longest: 30_000 }

/** Finished messages that wait for their completion to be recorded before the loop stops claiming more. */
const UNSETTLED_PER_SLOT = 4
const UNSETTLED_FLOOR = 200

/**
 * Runs one handler: claims messages for its free slots, keeps their leases, records what became of them. Slots are
 * independent: a slow message holds one slot and nothing else. A loop that has found nothing waits until it is woken
 * (poller.ts), or for what it tries again itself.
 */
export class QueueConsumer {
  readonly #services: Services
  readonly #handler: Handler
  readonly #queue: Queue<any>
  readonly #queues: Queues
  readonly #settlement: MessageOutcomes
  readonly #log: Logger
  readonly #stopping: AbortSignal
  readonly #slots: number
  readonly #batch: number
  /** Messages one project may hold while others wait, and while none do. */
  readonly #share: number
  readonly #borrow: number
  readonly #hears: () => boolean
  readonly #takeSlotOf: JobContext['tryAcquireSlot']

  /** Claimed and not yet over, by message id. */
  readonly #held = new Map<string, Attempt>()
  /** Slots taken, by project; messages without one are not limited. */
  readonly #heldByProject = new Map<string, number>()
  #busy = 0
  /** The messages of each slot that a handler holds. */
  readonly #handled = new Set<readonly Attempt[]>()
  /** Slots that work without a message holds. */
  #taken = 0
  #unsettled = 0
  #woken = false
  #wake: (() => void) | undefined
  #nextDue = Number.POSITIVE_INFINITY
  #lastProject = ''
  #renewal: NodeJS.Timeout | undefined
  #takingOver = false
  #loop: Promise<void> | undefined
  readonly #hardStop = new AbortController()
  #handedBack = 0
  /** Since when every attempt of this loop that ended was failed by the database; undefined while some succeed. */
  #unavailableSince: number | undefined
  /** The loop waits for a slot, not for messages. */
  #wantsSlot = false
  /** The loop waits until fewer completions are to be recorded. */
  #wantsRoom = false
  /** By the last claim, messages may wait for the end of others of their key. */
  #othersWait = true
  /** When a message of this loop was last over. */
  #overAt = 0

  constructor(options: {
    services: Pick<Services, 'queues' | 'log' | 'config'>
    handler: Handler
    stopping: AbortSignal
    slots: number
    projectShare: number
    /** Whether notifications arrive. */
    notificationsHealthy: () => boolean
    takeSlotOf: JobContext['tryAcquireSlot']
  }) {
    const { handler, services } = options
    this.#services = services as Services
    this.#handler = handler
    const leaseSeconds = handler.leaseSeconds?.(services.config) ?? handler.queue.leaseSeconds
    this.#queue = { ...handler.queue, leaseSeconds }
    this.#queues = services.queues
    this.#settlement = new MessageOutcomes(this.#services, handler, this.#queue)
    this.#log = services.log
    this.#stopping = options.stopping
    this.#slots = options.slots
    this.#batch = handler.batch ?? 1
    const messages = options.slots * this.#batch
    const shared = this.#queue.project !== undefined && this.#batch === 1
    this.#share = shared ? Math.max(1, Math.ceil(messages * options.projectShare)) : messages
    this.#hears = options.notificationsHealthy
    this.#takeSlotOf = options.takeSlotOf
    this.#borrow = this.#share < messages ? Math.max(this.#share, messages - 1) : messages
  }

  get queue(): Queue<any> {
    return this.#queue
  }

  get running(): number {
    return [...this.#held.values()].filter(attempt => attempt.state === 'running').length
  }

  /** How its slots are used. One whose handler goes on although its messages are lost is held and does not work. */
  get slots(): Slots {
    const works = (attempts: readonly Attempt[]) =>
      attempts[0].waits === 0 && attempts.some(({ state, lease }) => state !== 'over' && lease !== 'lost')
    const working = [...this.#handled].filter(works).length + this.#taken
    return { queue: this.#queue.name, total: this.#slots, held: this.#busy, working }
  }

  start(): void {
    this.#loop = this.#run()
    this.#renewal = repeat((this.#queue.leaseSeconds * 1000) / 3, () => this.#renew())
  }

  /**
   * Takes a free slot for work of a project that has no message, as a claim would; what is returned gives it back. Null where
   * there is none.
   */
  tryAcquireSlot(project: string): (() => void) | null {
    const isFull = (this.#heldByProject.get(project) ?? 0) >= this.#share && this.#busy >= this.#borrow
    if (this.#busy >= this.#slots || isFull) return null
    this.#busy += 1
    this.#taken += 1
    this.#countProject({ project }, 1)
    return () => {
      this.#busy -= 1
      this.#taken -= 1
      this.#countProject({ project }, -1)
      if (this.#wantsSlot) this.claimNow()
    }
  }

  /** Messages whose lease ran out are waiting: settle them, and claim those that are due again. */
  async takeOverExpired(): Promise<void> {
    if (this.#takingOver) return
    this.#takingOver = true
    try {
      if (await this.#settlement.takeOverExpired()) this.claimNow()
    } catch (error) {
      this.#log.error({ err: error, queue: this.#queue.name }, 'expired messages not taken over')
    } finally {
      this.#takingOver = false
    }
  }

  /** Claims now: messages were announced or found to be due. */
  claimNow(): void {
    this.#woken = true
    this.#wake?.()
  }

  /** Ends the loop; see Workers.stop. The `stopping` signal is aborted before. */
  async stop(workersMs: number): Promise<number> {
    const graceMs = this.#handler.graceMs?.(this.#services.config) ?? workersMs
    const deadline = performance.now() + graceMs
    this.claimNow()
    // A claim that hangs on a lost connection must not hold the stop; what it still claims is given back.
    await Promise.race([this.#loop, sleep(Math.max(graceMs, 1000), undefined, { ref: false })])
    while (this.#held.size > 0 && performance.now() < deadline) await this.#change(deadline)

    this.#hardStop.abort()
    for (const attempt of this.#held.values()) attempt.abort.abort(new Error('worker stopped'))
    const last = performance.now() + LEAVE_MS
    while (this.#held.size > 0 && performance.now() < last) await this.#change(last)

    clearInterval(this.#renewal)
    const left = [...this.#held.values()]
    return this.#handedBack + (left.length > 0 ? await this.#giveBack(left) : 0)
  }

  /** Waits for a wake-up or until `deadline` (performance.now). */
  async #change(deadline: number): Promise<void> {
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
      const free = this.#slots - this.#busy
      const crowded = this.#unsettled > this.#slots * this.#batch * UNSETTLED_PER_SLOT + UNSETTLED_FLOOR
      if (free <= 0 || crowded) {
        this.#wantsSlot = free <= 0
        this.#wantsRoom = crowded
        await this.#change(Number.POSITIVE_INFINITY)
        continue
      }
      this.#wantsRoom = false
      // A claim leaves out what projects have no room for when it begins: a slot that is freed meanwhile calls for another.
      this.#wantsSlot = this.#heldByProject.size > 0
      this.#woken = false
      try {
        const again = await this.#claimAndStart(free)
        if (failures > 0) this.#log.info({ queue: this.#queue.name }, 'queue reachable again')
        failures = 0
        if (again) continue
      } catch (error) {
        failures += 1
        if (failures === 1) this.#log.error({ err: error, queue: this.#queue.name }, 'queue not reachable')
        await this.#change(performance.now() + Math.min(100 * 2 ** failures, 5000))
        continue
      }
      const due = this.#nextDue
      await this.#change(due)
      if (performance.now() >= due) this.#nextDue = Number.POSITIVE_INFINITY
    }
  }

  /** Fills free slots with one claim. Returns whether to claim again at once. */
  async #claimAndStart(free: number): Promise<boolean> {
    const request = {
      limit: this.#batch > 1 ? this.#batch : free,
      last: this.#lastProject,
      held: this.#heldByProject,
      share: this.#share,
      borrow: Math.max(0, this.#borrow - this.#busy),
    }
    const claimedAt = performance.now()
    const claims = await claimMessages(this.#queues.db, this.#queue, request)
    if (!claims) return true
    this.#lastProject = claims.last
    this.#othersWait = claims.othersWait
    // What was over meanwhile may have been what they waited for.
    const again = this.#queue.policy === 'stately' && claims.othersWait && this.#overAt >= claimedAt
    const jobs = await this.#keep(claims.jobs)
    if (this.#batch > 1) {
      if (jobs.length > 0) this.#startSlot(jobs)
    } else {
      for (const job of jobs) this.#startSlot([job])
    }
    // A slot that a full project frees may be filled by the same project again.
    this.#wantsSlot = this.#busy < this.#slots && [...this.#heldByProject.values()].some(held => held >= this.#share)
    if (claims.more && claims.jobs.length === 0) this.#dueAt(performance.now() + CONTENDED_MS)
    return again || (claims.more && claims.jobs.length > 0)
  }

  /** What this loop handles of the messages it claimed. */
  async #keep(jobs: MessageClaim[]): Promise<MessageClaim[]> {
    if (jobs.length === 0) return jobs
    const signal = this.#hardStop.signal
    const requeueAll = async (claims: MessageClaim[]) => {
      await retryWhileUnavailable(() => requeueMessages(this.#queues.db, this.#queue, claims, 0), { signal })
      this.#queues.wake(this.#queue.name, 'now')
    }
    if (this.#stopping.aborted) {
      await requeueAll(jobs)
      return []
    }
    // Slots that were taken while the claim was under way.
    const beyond = this.#batch === 1 ? jobs.splice(Math.max(0, this.#slots - this.#busy)) : []
    if (beyond.length > 0) await requeueAll(beyond)
    if (!this.#queue.key) return jobs
    // A delayed wake-up that is due becomes an immediate one under the entity's own key.
    const delayed = jobs.filter(job => job.key !== this.#queue.key!(job.data))
    if (delayed.length > 0) await retryWhileUnavailable(() => this.#promote(delayed), { signal })
    return jobs.filter(job => !delayed.includes(job))
  }

  async #promote(delayed: MessageClaim[]): Promise<void> {
    await this.#queues.transaction(async tx => {
      await this.#queues.insert(
        tx,
        delayed.map(job => buildMessage(this.#queue, job.data, { chain: messageTriggerChain(job.data) })),
      )
      await completeMessages(tx, this.#queue, delayed)
    })
    this.#queues.wake(this.#queue.name, 'now')
    this.claimNow()
  }

  #dueAt(time: number): void {
    this.#nextDue = Math.min(this.#nextDue, time)
  }

  #startSlot(jobs: MessageClaim[]): void {
    const now = performance.now()
    const attempts = jobs.map(
      (job): Attempt => ({
        ...job,
        startedAt: now,
        heldSince: now,
        completion: 'none',
        waits: 0,
        lease: 'held',
        state: 'running',
        abort: new AbortController(),
      }),
    )
    this.#busy += 1
    this.#handled.add(attempts)
    for (const attempt of attempts) {
      this.#held.set(attempt.id, attempt)
      this.#countProject(attempt, 1)
    }
    const work = this.#handler.batch ? this.#handleBatch(attempts) : this.#handleOne(attempts[0])
    void work
      .catch(error => this.#log.error({ err: error, queue: this.#queue.name }, 'attempt not recorded'))
      .finally(() => {
        this.#busy -= 1
        this.#handled.delete(attempts)
        for (const attempt of attempts) this.#countProject(attempt, -1)
        if (this.#wantsSlot) this.claimNow()
      })
  }

  /** Frees the slot of an attempt for as long as any work of it waits for other messages. */
  async #aside<T>(attempt: Attempt, work: () => Promise<T>): Promise<T> {
    if (attempt.waits++ === 0) {
      this.#busy -= 1
      this.#countProject(attempt, -1)
      if (this.#wantsSlot) this.claimNow()
    }
    try {
      return await work()
    } finally {
      if (--attempt.waits === 0) {
        this.#busy += 1
        this.#countProject(attempt, 1)
      }
    }
  }

  #countProject({ project }: Pick<MessageClaim, 'project'>, change: 1 | -1): void {
    if (this.#batch > 1 || project === null || project === NO_PROJECT) return
    const held = (this.#heldByProject.get(project) ?? 0) + change
    if (held > 0) this.#heldByProject.set(project, held)
    else this.#heldByProject.delete(project)
  }

  async #handleOne(attempt: Attempt): Promise<void> {
    const { context, delay } = this.#context(attempt, attempt.abort.signal)
    try {
      const tenant = attempt.project === NO_PROJECT ? null : attempt.project
      const tenancy = { tenant, patienceMs: Number.POSITIVE_INFINITY }
      await withTriggerChain(messageTriggerChain(attempt.data), () =>
        withTenant(tenancy, () => this.#handler.handle(this.#parse(attempt), context)),
      )
    } catch (error) {
      return this.#failed(attempt, error, delay())
    }
    this.#done(attempt)
  }

  /** Messages that the same triggers led to are handled together: what becomes of them is caused by those. */
  async #handleBatch(attempts: Attempt[]): Promise<void> {
    const chainOf = ({ data }: Attempt) => messageTriggerChain(data) ?? []
    for (const alike of Map.groupBy(attempts, attempt => chainOf(attempt).join()).values()) {
      // The lease of one may have been lost, or the worker stopped hard, while others were handled.
      const isOurs = ({ abort }: Attempt) => !abort.signal.aborted
      const ours = alike.filter(isOurs)
      for (const attempt of alike)
        if (!isOurs(attempt)) await this.#failed(attempt, attempt.abort.signal.reason, undefined)
      if (ours.length > 0) await withTriggerChain(chainOf(ours[0]), () => this.#handleTogether(ours))
    }
  }

  async #handleTogether(attempts: Attempt[]): Promise<void> {
    const signal = AbortSignal.any(attempts.map(attempt => attempt.abort.signal))
    const { context } = this.#context(attempts[0], signal)
    try {
      await this.#handler.handle(
        attempts.map(attempt => this.#parse(attempt)),
        context,
      )
    } catch (error) {
      const unavailable = databaseErrorKind(error) === 'unavailable'
      if (attempts.length === 1 || unavailable || error instanceof RequeueError || this.#hardStop.signal.aborted) {
        await Promise.all(attempts.map(attempt => this.#failed(attempt, error, undefined)))
        return
      }
      for (const attempt of attempts) {
        if (attempt.abort.signal.aborted) {
          await this.#failed(attempt, error, undefined)
          continue
        }
        const alone = this.#context(attempt, attempt.abort.signal)
        try {
          await this.#handler.handle([this.#parse(attempt)], alone.context)
          this.#done(attempt)
        } catch (failure) {
          await this.#failed(attempt, failure, alone.delay())
        }
      }
      return
    }
    for (const attempt of attempts) this.#done(attempt)
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
        signal,
        stopping: this.#stopping,
        get log() {
          return log.child({ queue: name, job: attempt.id, attempt: number })
        },
        retryIn: ms => {
          delay = ms
        },
        complete: outgoing => {
          // From here on a heartbeat cannot tell its end from a loss.
          attempt.completion = 'under_way'
          outgoing.alongside(guard => completionCte(this.#queue, attempt, guard))
          outgoing.afterCommit(() => {
            attempt.completion = 'committed'
          })
        },
        releaseSlotWhile: work => this.#aside(attempt, work),
        tryAcquireSlot: this.#takeSlotOf,
      },
    }
  }

  /** Records a completion with those of other slots; the slot is free for the next message meanwhile. */
  #done(attempt: Attempt): void {
    if (attempt.state === 'over') return
    this.#unavailableSince = undefined
    const duration = performance.now() - attempt.startedAt
    if (attempt.completion === 'committed') {
      this.#settlement.reportDone(attempt, duration)
      this.#over(attempt)
      return
    }
    if (attempt.lease !== 'held') return void this.#leave(attempt)
    attempt.state = 'settling'
    this.#unsettled += 1
    this.#settlement.complete(attempt, settled => {
      this.#unsettled -= 1
      if (this.#wantsRoom) this.claimNow()
      if (attempt.state === 'over') return
      // With a completion of its own whose commit was not answered it was completed then.
      if (settled || attempt.completion === 'under_way') this.#settlement.reportDone(attempt, duration)
      else this.#lost(attempt)
      this.#over(attempt)
    })
  }

  async #failed(attempt: Attempt, error: unknown, delay: number | undefined): Promise<void> {
    if (attempt.state === 'over') return
    if (attempt.completion === 'committed') {
      this.#log.error({ err: error, queue: this.#queue.name, job: attempt.id }, 'failed after its completion')
      return this.#done(attempt)
    }
    if (error instanceof RequeueError || this.#hardStop.signal.aborted) {
      this.#handedBack += await this.#giveBack([attempt], this.#stopping.aborted ? 0 : (delay ?? HAND_BACK_MS))
      return
    }
    if (attempt.lease !== 'held') return this.#leave(attempt)
    if (databaseErrorKind(error) === 'unavailable') {
      await this.#giveBack([attempt], this.#stopping.aborted ? 0 : this.#unavailableMs(), error)
      return
    }
    attempt.state = 'settling'
    const { lost, dueInMs } = await this.#settlement.fail(attempt, error, delay)
    if (lost) this.#lost(attempt)
    if (dueInMs !== undefined) {
      this.#dueAt(performance.now() + dueInMs + 1)
      this.claimNow()
    }
    this.#over(attempt)
  }

  #unavailableMs(): number {
    const now = performance.now()
    this.#unavailableSince ??= now
    return Math.min(Math.max((now - this.#unavailableSince) / 2, UNAVAILABLE_MS.least), UNAVAILABLE_MS.longest)
  }

  /** Leaves a message whose lease is over: the worker that took it over has recorded this attempt, if one has. */
  async #leave(attempt: Attempt): Promise<void> {
    if (attempt.lease === 'unknown') await this.#giveBack([attempt])
    else this.#over(attempt)
  }

  async #giveBack(attempts: Attempt[], delayMs = 0, err?: unknown): Promise<number> {
    for (const attempt of attempts) attempt.state = 'settling'
    const ids = await this.#settlement.requeue(attempts, { delayMs, err, signal: this.#hardStop.signal })
    for (const attempt of attempts) this.#over(attempt)
    return ids.size
  }

  #over(attempt: Attempt): void {
    attempt.state = 'over'
    if (this.#held.get(attempt.id) === attempt) this.#held.delete(attempt.id)
    this.#overAt = performance.now()
    // An entity's wake-up that came meanwhile has waited for the end of this one.
    const waits = this.#queue.policy === 'stately' && (this.#othersWait || !this.#hears())
    if (waits || this.#stopping.aborted) this.claimNow()
  }

  #lost(attempt: Attempt, lease: 'lost' | 'unknown' = 'lost'): void {
    attempt.lease = lease
    leasesLost.inc({ queue: this.#queue.name })
    this.#log.warn({ queue: this.#queue.name, job: attempt.id, attempt: attempt.retryCount + 1 }, 'lease lost')
    attempt.abort.abort(new Error('lease lost'))
  }

  /** Heartbeat: renews what is held; aborts what turned out to be no longer ours. */
  async #renew(): Promise<void> {
    const held = [...this.#held.values()].filter(
      attempt => attempt.state !== 'over' && attempt.completion !== 'committed',
    )
    if (held.length === 0) return
    const asked = performance.now()
    let renewed: Set<string> | undefined
    try {
      const answer = await this.#queues.boss.touch(
        this.#queue.name,
        held.map(({ id, retryCount }) => ({ id, retryCount })),
      )
      renewed = new Set((answer as { settled?: string[] }).settled)
    } catch (error) {
      this.#log.error({ err: error, queue: this.#queue.name }, 'leases not renewed')
    }
    for (const attempt of held) {
      if (renewed?.has(attempt.id)) attempt.heldSince = asked
      else if (
        attempt.state === 'running' &&
        attempt.completion === 'none' &&
        !attempt.abort.signal.aborted &&
        (renewed || this.#settlement.leaseOver(attempt))
      ) {
        this.#lost(attempt, renewed ? 'lost' : 'unknown')
      }
    }
  }
}

/** Calls `work` every `ms`, never twice at once. */
function repeat(ms: number, work: () => Promise<void>): NodeJS.Timeout {
  let running = false
  return setInterval(async () => {
    if (running) return
    running = true
    await work()
    running = false
  }, ms)
}
