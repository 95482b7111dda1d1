import { randomUUID } from 'node:crypto'
import { HOLDER } from '../../core/process/holder.ts'
import type { Services } from '../../core/process/services.ts'
import { disableFailing } from './auto-disable.ts'
import { attemptDelivery, type DeliveryAttemptOutcome, requeuedOutcome } from './deliver.ts'
import { logAttempt } from './delivery-report.ts'
import { DeliveryScheduler, type LeasedDelivery, type WebhookLane } from './delivery-scheduler.ts'
import { countSlots } from './delivery-slots.ts'
import {
  type ClaimGrant,
  claimDue,
  type DeliveryClaimRequest,
  type DeliveryOutcome,
  recordOutcomes,
  type WebhookTarget,
} from './delivery-store.ts'
import { SLOTS_PER_WEBHOOK } from './store.ts'

/** Deliveries claimed ahead of their slot: what a webhook's receiver takes in this time, at most this many. */
const AHEAD_MS = 250
const AHEAD_MAX = 100

/** Outcomes that nobody waits for are written together. */
const SETTLE_DELAY_MS = 15
const SETTLE_BATCH = 500

const RETRY_MS = [50, 200, 1000, 3000]

/** `ms` is null for one that was given back without an attempt. */
type Ended = LeasedDelivery & { outcome: DeliveryAttemptOutcome; ms: number | null }

type LaneClaim = { lane: WebhookLane; rows: number; slots: number }

/**
 * Sends what is due. The rows are the work: the loop is woken for webhooks with due deliveries, claims these with the slots
 * to send them, posts, and writes the outcomes of many deliveries in one statement.
 *
 * A slot is held only while there is something to send through it. Whoever finds none free leaves the delivery queued:
 * a worker that gives a slot back claims once more afterwards, so that nothing waits for the sweep.
 *
 * Every process shares its slots out by itself (lanes.ts): a delivery that finds one full is announced to the others.
 *
 * Rows are claimed ahead while a receiver is fast, so that the five attempts in flight follow each other without a
 * round trip to the database in between.
 */
export class DeliveryLoop {
  readonly #services: Services
  readonly #holder = `${HOLDER}:${randomUUID()}`
  readonly #lanes: DeliveryScheduler
  readonly #abort = new AbortController()
  readonly #retries = new Set<NodeJS.Timeout>()
  #ended: Ended[] = []
  #releases: { lane: WebhookLane; slot: number }[] = []
  #claiming = false
  #settling = false
  #settleTimer: NodeJS.Timeout | null = null
  #inFlight = 0
  #claimFailures = 0
  #settleFailures = 0
  #closed = false
  #stopped = false
  readonly #uncount: () => void
  #idle: (() => void) | null = null

  constructor(services: Services) {
    this.#services = services
    this.#lanes = new DeliveryScheduler(services.config.PROJECT_WORKER_SHARE)
    this.#uncount = countSlots(() => this.#lanes.slots)
  }

  /** No slot is left: other workers should be woken for what is due. */
  get full(): boolean {
    return this.#lanes.full
  }

  /** These webhooks may have deliveries due. */
  wake(targets: Iterable<WebhookTarget>): void {
    if (this.#closed) return
    for (const target of targets) this.#lanes.open(target).due = true
    this.#claimSoon()
  }

  /** A webhook changed: what waits here for a slot is read anew before it is sent. */
  reload(target: WebhookTarget): void {
    const lane = this.#lanes.find(target.webhook_id)
    if (lane?.claiming) lane.stale = true
    if (lane) this.#giveBack(lane)
    this.wake([target])
  }

  /**
   * Stops: claims no more, gives back what is not being sent, lets attempts in flight end for `graceMs`, then cuts
   * them off. What is cut off is due again at once and does not count.
   */
  async close(graceMs: number): Promise<void> {
    this.#closed = true
    for (const timer of this.#retries) clearTimeout(timer)
    for (const lane of this.#lanes.all()) {
      this.#giveBack(lane)
      this.#release(lane)
    }
    const hard = setTimeout(() => this.#abort.abort(new Error('worker stopped')), graceMs)
    this.#settleSoon(true)
    while (!this.#stopped && !this.#isIdle()) {
      await new Promise<void>(resolve => {
        this.#idle = resolve
      })
    }
    clearTimeout(hard)
    this.#stopped = true
    this.#uncount()
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

  #changed(): void {
    if (this.#closed && this.#isIdle()) this.#idle?.()
  }

  /* Claiming: one statement at a time for all webhooks that have room. */

  #claimSoon(): void {
    if (this.#claiming || this.#closed) return
    this.#claiming = true
    setImmediate(() => void this.#claim())
  }

  async #claim(): Promise<void> {
    const { pool, config, log } = this.#services
    try {
      while (!this.#closed) {
        const claims = this.#laneClaims()
        if (claims.length === 0) break
        const asked = performance.now()
        let grants: Map<string, ClaimGrant>
        try {
          grants = await claimDue(pool, this.#holder, claims.map(toRequest), config.WEBHOOK_LEASE_MS)
          this.#claimFailures = 0
        } catch (error) {
          if (this.#claimFailures === 0) log.error({ err: error }, 'deliveries not claimed yet')
          const delay = RETRY_MS[Math.min(this.#claimFailures++, RETRY_MS.length - 1)]
          for (const { lane } of claims) {
            lane.claiming = false
            lane.due = true
          }
          await new Promise(resolve => setTimeout(resolve, delay))
          continue
        }
        for (const { lane, rows } of claims)
          this.#granted(lane, grants.get(lane.webhook_id), rows, asked + config.WEBHOOK_LEASE_MS)
      }
    } finally {
      this.#claiming = false
      this.#changed()
    }
  }

  /** Which webhooks claim, and how much. */
  #laneClaims(): LaneClaim[] {
    const open: WebhookLane[] = []
    for (const lane of this.#lanes.all()) {
      if (!lane.due || lane.claiming || lane.releasing) continue
      if (lane.slots.length > 0 && this.#lanes.yields(lane)) this.#release(lane)
      // Claiming a few rows at a time would cost a statement for each of them.
      else if (lane.queue.length <= aheadOf(lane) / 2) open.push(lane)
    }
    const shares = this.#lanes.shareOut(open)
    const claims: LaneClaim[] = []
    for (const lane of open) {
      const slots = shares.get(lane) ?? 0
      const held = slots + lane.slots.length
      const rows = held - lane.running - lane.queue.length + aheadOf(lane)
      if (held === 0 || rows <= 0) continue
      lane.due = false
      lane.claiming = true
      claims.push({ lane, rows, slots })
    }
    return claims
  }

  #granted(lane: WebhookLane, grant: ClaimGrant | undefined, rows: number, until: number): void {
    lane.claiming = false
    this.#lanes.setSlots(lane, grant?.slots ?? [])
    lane.slotsUntil = until
    const claimed = grant?.deliveries ?? []
    for (const delivery of claimed) lane.queue.push({ delivery, until })
    if (claimed.length === rows) lane.due = true
    if (this.#closed || lane.stale) this.#giveBack(lane)
    lane.stale = false
    this.#start(lane, true)
    this.#release(lane)
  }

  /* Sending: as many at once as slots are held. */

  /** Starts what waits. `fresh`: claim and slots were granted just now. */
  #start(lane: WebhookLane, fresh: boolean): void {
    const { WEBHOOK_TIMEOUT_MS } = this.#services.config
    while (lane.queue.length > 0 && lane.running < lane.slots.length) {
      // An attempt that begins now might outlive the lease of its claim or of its slot.
      if (!fresh && Math.min(lane.queue[0].until, lane.slotsUntil) < performance.now() + WEBHOOK_TIMEOUT_MS) {
        this.#giveBack(lane)
        break
      }
      void this.#send(lane, lane.queue.shift() as LeasedDelivery)
    }
    if (lane.due) this.#claimSoon()
  }

  async #send(lane: WebhookLane, leased: LeasedDelivery): Promise<void> {
    lane.running += 1
    this.#inFlight += 1
    const started = performance.now()
    const until = Math.min(leased.until, lane.slotsUntil)
    const outcome = await attemptDelivery(this.#services, leased.delivery, until, this.#abort.signal)
    const ms = performance.now() - started
    lane.running -= 1
    this.#inFlight -= 1
    lane.answerMs = lane.answerMs === null ? ms : lane.answerMs * 0.8 + ms * 0.2
    this.#ended.push({ ...leased, outcome, ms })
    if (lane.queue.length > SLOTS_PER_WEBHOOK + 2 * aheadOf(lane)) this.#giveBack(lane)
    this.#start(lane, false)
    this.#release(lane)
    this.#settleSoon(this.#ended.length >= SETTLE_BATCH)
  }

  /** Puts what waits for a slot back as it was. */
  #giveBack(lane: WebhookLane): void {
    if (lane.queue.length === 0) return
    for (const leased of lane.queue) this.#ended.push({ ...leased, outcome: requeuedOutcome, ms: null })
    lane.queue = []
    lane.due = true
    this.#release(lane)
    this.#settleSoon(true)
  }

  /** Gives back the slots there is nothing to send through, unless a claim is about to fill them; ends a lane without work. */
  #release(lane: WebhookLane): void {
    if (lane.claiming || lane.releasing) return
    if (lane.due && !this.#closed && !this.#lanes.yields(lane)) {
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
      this.#changed()
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
      const settled = await recordOutcomes(
        pool,
        this.#holder,
        ended.map(toSettlement),
        releases.map(({ lane, slot }) => ({ webhook_id: lane.webhook_id, slot })),
      )
      this.#settleFailures = 0
      this.#released(releases)
      this.#settled(ended, settled)
      await disableFailing(
        this.#services,
        ended.filter(item => settled.has(item.delivery.id)),
      ).catch(error => log.error({ err: error }, 'failures of webhooks not counted'))
    } catch (error) {
      if (this.#settleFailures++ === 0) log.error({ err: error }, 'outcomes of deliveries not recorded yet')
      retryMs = RETRY_MS[Math.min(this.#settleFailures - 1, RETRY_MS.length - 1)]
      // Once their lease is over they are sent again, and nothing that is written here would count.
      const now = performance.now()
      const keeps = (item: Ended) => item.until > now && !(this.#closed && this.#settleFailures > RETRY_MS.length)
      for (const item of ended)
        if (item.ms !== null && !keeps(item)) logAttempt(log, item.delivery, item.outcome, item.ms, 'lost')
      this.#ended.unshift(...ended.filter(keeps))
      if (this.#closed && this.#settleFailures > RETRY_MS.length) this.#released(releases)
      else this.#releases.unshift(...releases)
    }
    this.#settling = false
    if (retryMs > 0) this.#settleTimer = setTimeout(() => void this.#settle(), retryMs)
    else this.#settleSoon(this.#ended.length >= SETTLE_BATCH)
    this.#changed()
  }

  #settled(ended: readonly Ended[], settled: ReadonlySet<string>): void {
    for (const item of ended) {
      const { outcome, delivery } = item
      const recorded = settled.has(delivery.id)
      if (recorded && outcome.decision === 'returned') this.wake([delivery])
      if (item.ms === null) continue
      logAttempt(this.#services.log, delivery, outcome, item.ms, recorded ? outcome.decision : 'lost')
      if (recorded && outcome.retry_ms !== null) this.#wakeIn(outcome.retry_ms, delivery)
    }
  }

  /** The slots are free for everybody now. Who found none before may have left something: claim again. */
  #released(releases: readonly { lane: WebhookLane; slot: number }[]): void {
    for (const { lane, slot } of releases) {
      this.#lanes.takeSlot(lane, slot)
      lane.releasing = false
      lane.due = true
    }
    if (this.#closed) for (const { lane } of releases) this.#release(lane)
    // Capacity is back for those who waited for it as well.
    else if (releases.length > 0) this.#claimSoon()
  }

  /** The sweep would find a retry too, seconds late. */
  #wakeIn(ms: number, target: WebhookTarget): void {
    if (this.#closed) return
    const timer = setTimeout(() => {
      this.#retries.delete(timer)
      this.wake([target])
    }, ms + 1)
    this.#retries.add(timer)
  }
}

/** How many deliveries are worth claiming ahead for a webhook whose receiver answers as fast as it does. */
const aheadOf = (lane: WebhookLane): number =>
  lane.answerMs === null
    ? 0
    : Math.min(AHEAD_MAX, Math.floor((SLOTS_PER_WEBHOOK * AHEAD_MS) / Math.max(lane.answerMs, 1)))

const toRequest = ({ lane, rows, slots }: LaneClaim): DeliveryClaimRequest => ({
  webhook_id: lane.webhook_id,
  rows,
  slots,
  held: lane.slots,
})

const toSettlement = ({ delivery, outcome }: Ended): DeliveryOutcome => ({
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
