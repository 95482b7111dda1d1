import { randomUUID } from 'node:crypto'
import { injectFault } from '#core/base/fault-injection.ts'
import { HOLDER } from '#core/base/holder.ts'
import { runLoopOnce } from '#core/base/loop.ts'
import type { Services } from '#core/base/services.ts'
import { withStatementLimit } from '#core/db/pg-client.ts'
import type { Suspect, SuspectSource } from '#core/queues/suspects.ts'
import { MAX_WORKER_LOSSES } from '#core/work/message-claims.ts'
import { spanRow } from '#core/writes/span-outbox.ts'
import { disableFailing } from './auto-disable.ts'
import { attemptDelivery, type DeliveryAttemptOutcome, requeuedOutcome } from './deliver.ts'
import { logAttempt } from './delivery-report.ts'
import { DeliveryScheduler, type LeasedDelivery, type WebhookLane } from './delivery-scheduler.ts'
import { countSlots } from './delivery-slots.ts'
import {
  type ClaimedDelivery,
  type ClaimGrant,
  claimDueDeliveries,
  claimSuspectDelivery,
  type DeliveryClaimRequest,
  type DeliveryOutcome,
  endSuspectProbation,
  findSuspectDelivery,
  recordOutcomes,
  releaseUnheld,
  type SuspectDelivery,
  type WebhookTarget,
} from './delivery-store.ts'
import { SLOTS_PER_WEBHOOK } from './store.ts'

/** Deliveries are claimed ahead for this much sending time of a webhook, at most this many. */
const AHEAD_MS = 250
const MAX_AHEAD = 100

/** Delay and size of a batch of outcomes written together. */
const SETTLE_DELAY_MS = 15
const SETTLE_BATCH = 500

const RETRY_MS = [50, 200, 1000, 3000]

/** Longest duration of the statement of a claim. */
const CLAIM_MS = 6000
/** Half of the time after which a write of outcomes is abandoned. */
const SETTLE_MS = 15_000

/** How long, and how often, unheld slots and deliveries are released after a failed claim. */
const RETURN_FOR_MS = 120_000
const RETURN_EVERY_MS = 5000

/** `ms` is null for a delivery requeued without an attempt. */
type EndedDelivery = LeasedDelivery & { outcome: DeliveryAttemptOutcome; ms: number | null }

type LaneClaim = { lane: WebhookLane; rows: number; slots: number }

/**
 * Sends due deliveries. On a wake-up for webhooks it claims their due deliveries together with slots, posts them, and
 * writes the outcomes of many deliveries in one statement.
 *
 * A slot is leased only while there is a delivery to send. Without a free slot the delivery stays queued: a worker that
 * releases a slot claims once more, so that no delivery waits for the sweep.
 *
 * DeliveryScheduler distributes the slots of a process; a full process notifies the others of due deliveries.
 *
 * Rows are claimed ahead for fast receivers, so that the five concurrent attempts continue without a round trip to the
 * database in between.
 */
export class DeliveryLoop implements SuspectSource {
  readonly #services: Services
  readonly #holder = `${HOLDER}:${randomUUID()}`
  readonly #lanes: DeliveryScheduler
  readonly #abort = new AbortController()
  readonly #retries = new Set<NodeJS.Timeout>()
  #ended: EndedDelivery[] = []
  #releases: { lane: WebhookLane; slot: number }[] = []
  #claiming = false
  #settling = false
  #settleTimer: NodeJS.Timeout | null = null
  #inFlight = 0
  /** IDs of claimed deliveries without a recorded outcome. */
  readonly #held = new Set<string>()
  #claimLostAt = Number.NEGATIVE_INFINITY
  #returnedAt = Number.NEGATIVE_INFINITY
  #claimFailures = 0
  #settleFailures = 0
  /** Whether the process runs a suspect: nothing is claimed. */
  #paused = false
  #closed = false
  #stopped = false
  readonly #stopCounting: () => void
  #resolveIdle: (() => void) | null = null

  constructor(services: Services) {
    this.#services = services
    this.#lanes = new DeliveryScheduler(services.config.PROJECT_WORKER_SHARE)
    this.#stopCounting = countSlots(() => this.#lanes.slots)
  }

  /** Whether no slot is free, so that other workers should be notified of due deliveries. */
  get full(): boolean {
    return this.#lanes.full
  }

  /** Claims due deliveries of webhooks as soon as slots are free. */
  wake(targets: Iterable<WebhookTarget>): void {
    if (this.#closed) return
    for (const target of targets) this.#lanes.open(target).due = true
    this.#claimSoon()
  }

  /** Requeues the claimed deliveries of a changed webhook, so that they are sent with its current settings. */
  reload(target: WebhookTarget): void {
    const lane = this.#lanes.find(target.webhook_id)
    if (lane?.claiming) lane.stale = true
    if (lane) this.#requeue(lane)
    this.wake([target])
  }

  /* Suspects (core/work/quarantine.ts). */

  pause(paused: boolean): void {
    if (this.#paused === paused) return
    this.#paused = paused
    if (!paused) this.#claimSoon()
    else for (const lane of this.#lanes.all()) this.#requeue(lane)
  }

  isIdle(except: ReadonlySet<string>): boolean {
    return !this.#claiming && [...this.#held].every(id => except.has(id))
  }

  isEmpty(): boolean {
    return !this.#claiming && this.#held.size === 0
  }

  async find(): Promise<Pick<Suspect, 'losses' | 'strict'> | null> {
    const losses = this.#closed ? null : await findSuspectDelivery(this.#services.pool)
    return losses === null ? null : { losses, strict: losses >= MAX_WORKER_LOSSES }
  }

  async claim(alone: boolean): Promise<Suspect | null> {
    const { config, pool } = this.#services
    const until = performance.now() + config.WEBHOOK_LEASE_MS
    const claim = () => claimSuspectDelivery(pool, this.#holder, { alone, leaseMs: config.WEBHOOK_LEASE_MS })
    // In flight until it has been sent: `close` waits for it.
    this.#inFlight += 1
    let delivery: SuspectDelivery | null = null
    try {
      delivery = await withStatementLimit(CLAIM_MS, claim)
    } catch (error) {
      this.#claimLostAt = performance.now()
      throw error
    } finally {
      if (!delivery) {
        this.#inFlight -= 1
        this.#checkIdle()
      }
    }
    if (!delivery) return null
    const claimed = delivery
    this.#held.add(claimed.id)
    const { id, worker_losses: losses } = claimed
    return {
      id,
      project: claimed.project_id,
      queue: 'webhook.delivery',
      losses,
      strict: losses >= MAX_WORKER_LOSSES,
      run: () => this.#runSuspect(claimed, until),
      endProbation: async () => void (await endSuspectProbation(pool, claimed)),
    }
  }

  async #runSuspect(delivery: SuspectDelivery, until: number): Promise<boolean> {
    const requeued = { outcome: requeuedOutcome, ms: null }
    const { outcome, ms } = this.#closed ? requeued : await this.#attempt(delivery, until)
    this.#inFlight -= 1
    this.#ended.push({ delivery, until, outcome, ms })
    this.#settleSoon(true)
    return true
  }

  /**
   * Stops claiming, requeues deliveries that are not being sent, waits up to `graceMs` for attempts in flight and then
   * aborts them. Aborted attempts do not count, and their deliveries are due immediately.
   */
  async close(graceMs: number): Promise<void> {
    this.#closed = true
    for (const timer of this.#retries) clearTimeout(timer)
    for (const lane of this.#lanes.all()) {
      this.#requeue(lane)
      this.#release(lane)
    }
    const hard = setTimeout(() => this.#abort.abort(new Error('worker stopped')), graceMs)
    this.#settleSoon(true)
    while (!this.#stopped && !this.#isIdle()) {
      await new Promise<void>(resolve => {
        this.#resolveIdle = resolve
      })
    }
    clearTimeout(hard)
    this.#stopped = true
    this.#stopCounting()
  }

  #isIdle(): boolean {
    return (
      this.#inFlight === 0 &&
      !this.#claiming &&
      this.#ended.length === 0 &&
      this.#releases.length === 0 &&
      !this.#settling
    )
  }

  #checkIdle(): void {
    if (this.#closed && this.#isIdle()) this.#resolveIdle?.()
  }

  /* Claiming: one statement at a time for all webhooks with free slots. */

  #claimSoon(): void {
    if (this.#claiming || this.#closed) return
    this.#claiming = true
    setImmediate(() => void this.#claim())
  }

  async #claim(): Promise<void> {
    const { pool, config, log } = this.#services
    try {
      while (!this.#closed) {
        await this.#returnUnheld()
        const claims = this.#laneClaims()
        if (claims.length === 0) break
        const requestedAt = performance.now()
        let grants: Map<string, ClaimGrant>
        try {
          const claim = () => claimDueDeliveries(pool, this.#holder, claims.map(toRequest), config.WEBHOOK_LEASE_MS)
          grants = await runLoopOnce('delivery claims', CLAIM_MS / 2, () => withStatementLimit(CLAIM_MS, claim))
          this.#claimFailures = 0
        } catch (error) {
          this.#claimLostAt = performance.now()
          if (this.#claimFailures === 0) log.error({ err: error }, 'delivery claim failed')
          const delay = RETRY_MS[Math.min(this.#claimFailures++, RETRY_MS.length - 1)]
          for (const { lane } of claims) {
            lane.claiming = false
            lane.due = true
          }
          await new Promise(resolve => setTimeout(resolve, delay))
          continue
        }
        for (const { lane, rows } of claims)
          this.#acceptGrant(lane, grants.get(lane.webhook_id), rows, requestedAt + config.WEBHOOK_LEASE_MS)
      }
    } finally {
      this.#claiming = false
      this.#checkIdle()
    }
  }

  /**
   * Releases the slots and deliveries of a claim whose answer was lost. Repeated for a while, because the server may
   * execute a claim after its connection was lost.
   */
  async #returnUnheld(): Promise<void> {
    const now = performance.now()
    if (now - this.#claimLostAt > RETURN_FOR_MS || now - this.#returnedAt < RETURN_EVERY_MS || this.#paused) return
    const lanes = [...this.#lanes.all()]
    const slots = lanes.flatMap(({ webhook_id, slots }) => slots.map(slot => ({ webhook_id, slot })))
    try {
      for (const target of await releaseUnheld(this.#services.pool, this.#holder, {
        slots,
        deliveries: [...this.#held],
      }))
        this.#lanes.open(target).due = true
      this.#returnedAt = now
    } catch (error) {
      this.#services.log.warn({ err: error }, 'return of a lost delivery claim failed')
    }
  }

  /** Returns the claims to make for each webhook. */
  #laneClaims(): LaneClaim[] {
    const open: WebhookLane[] = []
    for (const lane of this.#paused ? [] : this.#lanes.all()) {
      if (!lane.due || lane.claiming || lane.releasing) continue
      if (lane.slots.length > 0 && this.#lanes.yields(lane)) this.#release(lane)
      // Claims only once half of the claimed-ahead rows are used, to avoid a statement for every few rows.
      else if (lane.queue.length <= aheadOf(lane) / 2) open.push(lane)
    }
    const shares = this.#lanes.distributeSlots(open)
    const claims: LaneClaim[] = []
    for (const lane of open) {
      const slots = shares.get(lane) ?? 0
      const leasedSlots = slots + lane.slots.length
      const rows = leasedSlots - lane.running - lane.queue.length + aheadOf(lane)
      if (leasedSlots === 0 || rows <= 0) continue
      lane.due = false
      lane.claiming = true
      claims.push({ lane, rows, slots })
    }
    return claims
  }

  #acceptGrant(lane: WebhookLane, grant: ClaimGrant | undefined, rows: number, until: number): void {
    lane.claiming = false
    this.#lanes.setSlots(lane, grant?.slots ?? [])
    lane.slotsUntil = until
    const claimed = grant?.deliveries ?? []
    for (const delivery of claimed) {
      lane.queue.push({ delivery, until })
      this.#held.add(delivery.id)
    }
    if (claimed.length === rows) lane.due = true
    if (this.#closed || this.#paused || lane.stale) this.#requeue(lane)
    lane.stale = false
    this.#start(lane, true)
    this.#release(lane)
  }

  /* Sending: one concurrent attempt per leased slot. */

  /** Starts claimed deliveries while slots are free. `fresh`: claim and slots have just been granted. */
  #start(lane: WebhookLane, fresh: boolean): void {
    const { WEBHOOK_TIMEOUT_MS } = this.#services.config
    while (lane.queue.length > 0 && lane.running < lane.slots.length) {
      // An attempt that starts now might outlive the lease of its claim or slot.
      if (!fresh && Math.min(lane.queue[0].until, lane.slotsUntil) < performance.now() + WEBHOOK_TIMEOUT_MS) {
        this.#requeue(lane)
        break
      }
      void this.#send(lane, lane.queue.shift() as LeasedDelivery)
    }
    if (lane.due) this.#claimSoon()
  }

  async #send(lane: WebhookLane, leased: LeasedDelivery): Promise<void> {
    lane.running += 1
    this.#inFlight += 1
    const until = Math.min(leased.until, lane.slotsUntil)
    const { outcome, ms } = await this.#attempt(leased.delivery, until)
    lane.running -= 1
    this.#inFlight -= 1
    lane.answerMs = lane.answerMs === null ? ms : lane.answerMs * 0.8 + ms * 0.2
    this.#ended.push({ ...leased, outcome, ms })
    if (lane.queue.length > SLOTS_PER_WEBHOOK + 2 * aheadOf(lane)) this.#requeue(lane)
    this.#start(lane, false)
    this.#release(lane)
    this.#settleSoon(this.#ended.length >= SETTLE_BATCH)
  }

  async #attempt(delivery: ClaimedDelivery, until: number): Promise<{ outcome: DeliveryAttemptOutcome; ms: number }> {
    const started = performance.now()
    await injectFault(this.#services, 'delivery_sending', () => delivery.id)
    const outcome = await attemptDelivery(this.#services, delivery, until, this.#abort.signal)
    return { outcome, ms: performance.now() - started }
  }

  /** Requeues the claimed deliveries that wait for a slot. */
  #requeue(lane: WebhookLane): void {
    if (lane.queue.length === 0) return
    for (const leased of lane.queue) this.#ended.push({ ...leased, outcome: requeuedOutcome, ms: null })
    lane.queue = []
    lane.due = true
    this.#release(lane)
    this.#settleSoon(true)
  }

  /** Releases unused slots, unless a claim is about to use them, and closes a lane without work. */
  #release(lane: WebhookLane): void {
    if (lane.claiming || lane.releasing) return
    if (lane.due && !this.#closed && !this.#paused && !this.#lanes.yields(lane)) {
      this.#claimSoon()
      return
    }
    const surplus = lane.queue.length > 0 ? 0 : lane.slots.length - lane.running
    if (surplus > 0) {
      lane.releasing = true
      for (const slot of lane.slots.slice(-surplus)) this.#releases.push({ lane, slot })
      this.#settleSoon(false)
    } else if (lane.slots.length === 0 && lane.running === 0 && lane.queue.length === 0 && !lane.due) {
      this.#lanes.close(lane)
    }
  }

  /* Recording: one statement at a time for all outcomes. */

  #settleSoon(now: boolean): void {
    if (this.#settling) return
    if (this.#ended.length === 0 && this.#releases.length === 0) {
      this.#checkIdle()
      return
    }
    if (this.#settleTimer && !now) return
    if (this.#settleTimer) clearTimeout(this.#settleTimer)
    this.#settleTimer = setTimeout(() => void this.#settle(), now ? 0 : SETTLE_DELAY_MS)
  }

  async #settle(): Promise<void> {
    const { pool, log } = this.#services
    this.#settleTimer = null
    this.#settling = true
    const ended = this.#ended.splice(0, 2 * SETTLE_BATCH)
    const releases = this.#releases.splice(0)
    let retryMs = 0
    try {
      const spans = ended.flatMap(({ delivery, outcome: { capture, decision } }) =>
        capture && decision !== 'returned' ? (spanRow(this.#services, capture, {}, delivery.id) ?? []) : [],
      )
      const freed = releases.map(({ lane, slot }) => ({ webhook_id: lane.webhook_id, slot }))
      const recordedIds = await runLoopOnce('delivery outcomes', SETTLE_MS, () =>
        recordOutcomes(pool, this.#holder, { outcomes: ended.map(toDeliveryOutcome), releases: freed, spans }),
      )
      this.#settleFailures = 0
      for (const { delivery } of ended) this.#held.delete(delivery.id)
      this.#handleReleased(releases)
      this.#handleRecorded(ended, recordedIds)
      await disableFailing(
        this.#services,
        ended.filter(item => recordedIds.has(item.delivery.id)),
      ).catch(error => log.error({ err: error }, 'webhook failure count failed'))
    } catch (error) {
      if (this.#settleFailures++ === 0) log.error({ err: error }, 'delivery outcomes not recorded, retrying')
      retryMs = RETRY_MS[Math.min(this.#settleFailures - 1, RETRY_MS.length - 1)]
      // After its lease a delivery is sent again, and its outcome is rejected by the fence.
      const now = performance.now()
      const canRetry = (item: EndedDelivery) =>
        item.until > now && !(this.#closed && this.#settleFailures > RETRY_MS.length)
      for (const item of ended) {
        if (canRetry(item)) continue
        this.#held.delete(item.delivery.id)
        if (item.ms !== null) logAttempt(log, item.delivery, item.outcome, item.ms, 'lost')
      }
      this.#ended.unshift(...ended.filter(canRetry))
      if (this.#closed && this.#settleFailures > RETRY_MS.length) this.#handleReleased(releases)
      else this.#releases.unshift(...releases)
    }
    this.#settling = false
    if (retryMs > 0) this.#settleTimer = setTimeout(() => void this.#settle(), retryMs)
    else this.#settleSoon(this.#ended.length >= SETTLE_BATCH)
    this.#checkIdle()
  }

  #handleRecorded(ended: readonly EndedDelivery[], recordedIds: ReadonlySet<string>): void {
    for (const item of ended) {
      const { outcome, delivery } = item
      const recorded = recordedIds.has(delivery.id)
      if (recorded && outcome.decision === 'returned') this.wake([delivery])
      if (item.ms === null) continue
      logAttempt(this.#services.log, delivery, outcome, item.ms, recorded ? outcome.decision : 'lost')
      if (recorded && outcome.retry_ms !== null) this.#wakeIn(outcome.retry_ms, delivery)
    }
  }

  /** Frees the slots locally and claims again, because deliveries may have stayed queued for lack of a slot. */
  #handleReleased(releases: readonly { lane: WebhookLane; slot: number }[]): void {
    for (const { lane, slot } of releases) {
      this.#lanes.removeSlot(lane, slot)
      lane.releasing = false
      lane.due = true
    }
    if (this.#closed) for (const { lane } of releases) this.#release(lane)
    // Other lanes may be waiting for the freed capacity.
    else if (releases.length > 0) this.#claimSoon()
  }

  /** Schedules the claim of a retry; the sweep alone would find it seconds late. */
  #wakeIn(ms: number, target: WebhookTarget): void {
    if (this.#closed) return
    const timer = setTimeout(() => {
      this.#retries.delete(timer)
      this.wake([target])
    }, ms + 1)
    this.#retries.add(timer)
  }
}

/** Returns the number of deliveries to claim ahead, from the response time of the receiver. */
const aheadOf = (lane: WebhookLane): number =>
  lane.answerMs === null
    ? 0
    : Math.min(MAX_AHEAD, Math.floor((SLOTS_PER_WEBHOOK * AHEAD_MS) / Math.max(lane.answerMs, 1)))

const toRequest = ({ lane, rows, slots }: LaneClaim): DeliveryClaimRequest => ({
  webhook_id: lane.webhook_id,
  rows,
  slots,
  held: lane.slots,
})

const toDeliveryOutcome = ({ delivery, outcome }: EndedDelivery): DeliveryOutcome => ({
  id: delivery.id,
  webhook_id: delivery.webhook_id,
  claim: delivery.claim,
  settled: outcome.decision !== 'returned',
  status: outcome.status,
  status_code: outcome.status_code,
  counted: outcome.counted,
  retry_ms: outcome.retry_ms,
  response_body: outcome.response_body,
})
