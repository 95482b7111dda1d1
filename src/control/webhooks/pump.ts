import { randomUUID } from 'node:crypto'
import { deliveries } from '../../core/process/metrics.ts'
import type { Services } from '../../core/process/services.ts'
import { attempt, type Outcome, returned } from './deliver.ts'
import { type Claimed, claimDue, type Grant, type Settlement, settle, type Target } from './delivery-store.ts'
import { recordFailures } from './failing.ts'
import { SLOTS } from './store.ts'

/** Slots one process holds at most: the posts it has in flight. */
const PROCESS_SLOTS = 250

/** Deliveries claimed ahead of their slot: what a webhook's receiver takes in this time, at most this many. */
const AHEAD_MS = 250
const AHEAD_MAX = 100

/** Outcomes that nobody waits for are written together. */
const SETTLE_DELAY_MS = 15
const SETTLE_BATCH = 500

const RETRY_MS = [50, 200, 1000, 3000]

/** What this process does for one webhook. It exists while there is something to do. */
type Lane = Target & {
  /** Numbers of the slots held, and until when for certain (performance.now). */
  slots: number[]
  slotsUntil: number
  /** Claimed, waiting for a slot. */
  queue: Work[]
  running: number
  /** There may be due deliveries: ask. */
  look: boolean
  asking: boolean
  /** The webhook changed while a claim was on its way: what it brings is old. */
  stale: boolean
  /** Slots on their way back; once they are, somebody has to look again. */
  releasing: boolean
  /** How long an answer of the receiver takes, smoothed; unknown at first. */
  answerMs: number | null
}

/** A claimed delivery and when its lease ends for certain. */
type Work = { delivery: Claimed; until: number }

/** `ms` is null for one that was given back without an attempt. */
type Ended = Work & { outcome: Outcome; ms: number | null }

/**
 * Sends what is due (control, 2.6). The rows are the work: the pump is told which webhooks to look at, claims
 * deliveries with the slots to send them, posts, and writes the outcomes of many deliveries in one statement.
 *
 * A slot is held only while there is something to send through it. Whoever finds none free leaves the delivery queued:
 * a worker that gives a slot back looks once more afterwards, so that nothing waits for the sweep.
 *
 * Rows are claimed ahead while a receiver is fast, so that the five attempts in flight follow each other without a
 * round trip to the database in between.
 */
export class Pump {
  readonly #services: Services
  readonly #holder = randomUUID()
  readonly #lanes = new Map<string, Lane>()
  readonly #slotsByProject = new Map<string, number>()
  readonly #projectSlots: number
  readonly #abort = new AbortController()
  readonly #retries = new Set<NodeJS.Timeout>()
  /** Projects, or `*`, whose webhooks wait for slots that others of them hold: those do not claim more in a row. */
  #starved = new Set<string>()
  #ended: Ended[] = []
  #releases: { lane: Lane; slot: number }[] = []
  #claiming = false
  #settling = false
  #settleTimer: NodeJS.Timeout | null = null
  #slotsHeld = 0
  #inFlight = 0
  #claimFailures = 0
  #settleFailures = 0
  #closed = false
  #stopped = false
  #idle: (() => void) | null = null

  constructor(services: Services) {
    this.#services = services
    this.#projectSlots = Math.max(SLOTS, Math.ceil(PROCESS_SLOTS * services.config.PROJECT_WORKER_SHARE))
  }

  /** No slot is left: what is due had better be looked at by other workers too. */
  get full(): boolean {
    return this.#slotsHeld >= PROCESS_SLOTS
  }

  /** These webhooks may have deliveries due. */
  look(targets: Iterable<Target>): void {
    if (this.#closed) return
    for (const target of targets) this.#lane(target).look = true
    this.#claimSoon()
  }

  /** A webhook changed: what waits here for a slot is read anew before it is sent. */
  refresh(target: Target): void {
    const lane = this.#lanes.get(target.webhook_id)
    if (lane?.asking) lane.stale = true
    if (lane) this.#giveBack(lane)
    this.look([target])
  }

  /**
   * Stops: claims no more, gives back what is not being sent, lets attempts in flight end for `graceMs`, then cuts
   * them off. What is cut off is due again at once and does not count.
   */
  async close(graceMs: number): Promise<void> {
    this.#closed = true
    for (const timer of this.#retries) clearTimeout(timer)
    for (const lane of this.#lanes.values()) {
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
  }

  #lane(target: Target): Lane {
    let lane = this.#lanes.get(target.webhook_id)
    if (!lane) {
      lane = {
        webhook_id: target.webhook_id,
        project_id: target.project_id,
        slots: [],
        slotsUntil: 0,
        queue: [],
        running: 0,
        look: false,
        asking: false,
        stale: false,
        releasing: false,
        answerMs: null,
      }
      this.#lanes.set(lane.webhook_id, lane)
    }
    return lane
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
        const asking = this.#asks()
        if (asking.length === 0) break
        const asked = performance.now()
        let grants: Map<string, Grant>
        try {
          grants = await claimDue(
            pool,
            this.#holder,
            asking.map(({ lane, rows, slots }) => ({ webhook_id: lane.webhook_id, rows, slots, held: lane.slots })),
            config.WEBHOOK_LEASE_MS,
          )
          this.#claimFailures = 0
        } catch (error) {
          if (this.#claimFailures === 0) log.error({ err: error }, 'deliveries not claimed yet')
          const delay = RETRY_MS[Math.min(this.#claimFailures++, RETRY_MS.length - 1)]
          for (const { lane } of asking) {
            lane.asking = false
            lane.look = true
          }
          await new Promise(resolve => setTimeout(resolve, delay))
          continue
        }
        for (const { lane, rows } of asking)
          this.#granted(lane, grants.get(lane.webhook_id), rows, asked + config.WEBHOOK_LEASE_MS)
      }
    } finally {
      this.#claiming = false
      this.#changed()
    }
  }

  /** Who wants to claim, how much. Slots are handed out in turn, none beyond a project's share. */
  #asks(): { lane: Lane; rows: number; slots: number }[] {
    const asks: { lane: Lane; rows: number; slots: number }[] = []
    let free = PROCESS_SLOTS - this.#slotsHeld
    const promised = new Map<string, number>()
    const starved = new Set<string>()
    for (const lane of this.#lanes.values()) {
      if (!lane.look || lane.asking || lane.releasing) continue
      if (lane.slots.length > 0 && this.#yields(lane)) {
        this.#release(lane)
        continue
      }
      const ahead = aheadOf(lane)
      const waiting = lane.queue.length
      // Asking for a few rows at a time would cost a statement for each of them.
      if (waiting > 0 && waiting > ahead / 2) continue
      const taken = (this.#slotsByProject.get(lane.project_id) ?? 0) + (promised.get(lane.project_id) ?? 0)
      const slots = Math.max(0, Math.min(SLOTS - lane.slots.length, free, this.#projectSlots - taken))
      if (slots + lane.slots.length === 0) {
        starved.add(free === 0 ? '*' : lane.project_id)
        continue
      }
      const rows = slots + lane.slots.length - lane.running - waiting + ahead
      if (rows <= 0) continue
      free -= slots
      promised.set(lane.project_id, (promised.get(lane.project_id) ?? 0) + slots)
      lane.look = false
      lane.asking = true
      asks.push({ lane, rows, slots })
    }
    this.#starved = starved
    return asks
  }

  #yields(lane: Lane): boolean {
    return this.#starved.has('*') || this.#starved.has(lane.project_id)
  }

  #granted(lane: Lane, grant: Grant | undefined, rows: number, until: number): void {
    lane.asking = false
    this.#setSlots(lane, grant?.slots ?? [])
    lane.slotsUntil = until
    const claimed = grant?.deliveries ?? []
    for (const delivery of claimed) lane.queue.push({ delivery, until })
    if (claimed.length === rows) lane.look = true
    if (this.#closed || lane.stale) this.#giveBack(lane)
    lane.stale = false
    this.#start(lane, true)
    this.#release(lane)
  }

  #setSlots(lane: Lane, slots: number[]): void {
    const difference = slots.length - lane.slots.length
    lane.slots = slots
    this.#slotsHeld += difference
    const held = (this.#slotsByProject.get(lane.project_id) ?? 0) + difference
    if (held > 0) this.#slotsByProject.set(lane.project_id, held)
    else this.#slotsByProject.delete(lane.project_id)
  }

  /* Sending: as many at once as slots are held. */

  /** Starts what waits. `fresh`: claim and slots were granted just now. */
  #start(lane: Lane, fresh: boolean): void {
    const { WEBHOOK_TIMEOUT_MS } = this.#services.config
    while (lane.queue.length > 0 && lane.running < lane.slots.length) {
      // An attempt that begins now might outlive the lease of its claim or of its slot.
      if (!fresh && Math.min(lane.queue[0].until, lane.slotsUntil) < performance.now() + WEBHOOK_TIMEOUT_MS) {
        this.#giveBack(lane)
        break
      }
      void this.#send(lane, lane.queue.shift() as Work)
    }
    if (lane.look) this.#claimSoon()
  }

  async #send(lane: Lane, work: Work): Promise<void> {
    lane.running += 1
    this.#inFlight += 1
    const started = performance.now()
    const until = Math.min(work.until, lane.slotsUntil)
    const outcome = await attempt(this.#services, work.delivery, until, this.#abort.signal)
    const ms = performance.now() - started
    lane.running -= 1
    this.#inFlight -= 1
    lane.answerMs = lane.answerMs === null ? ms : lane.answerMs * 0.8 + ms * 0.2
    this.#ended.push({ ...work, outcome, ms })
    if (lane.queue.length > SLOTS + 2 * aheadOf(lane)) this.#giveBack(lane)
    this.#start(lane, false)
    this.#release(lane)
    this.#settleSoon(this.#ended.length >= SETTLE_BATCH)
  }

  /** Puts what waits for a slot back as it was. */
  #giveBack(lane: Lane): void {
    if (lane.queue.length === 0) return
    for (const work of lane.queue) this.#ended.push({ ...work, outcome: returned, ms: null })
    lane.queue = []
    lane.look = true
    this.#release(lane)
    this.#settleSoon(true)
  }

  /** Gives back the slots there is nothing to send through, unless a claim is about to fill them; ends a lane without work. */
  #release(lane: Lane): void {
    if (lane.asking || lane.releasing) return
    if (lane.look && !this.#closed && !this.#yields(lane)) {
      this.#claimSoon()
      return
    }
    const surplus = lane.queue.length > 0 ? 0 : lane.slots.length - lane.running
    if (surplus > 0) {
      lane.releasing = true
      for (const slot of lane.slots.slice(-surplus)) this.#releases.push({ lane, slot })
      this.#settleSoon(false)
    } else if (lane.slots.length === 0 && lane.running === 0 && lane.queue.length === 0 && !lane.look) {
      this.#lanes.delete(lane.webhook_id)
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
      const settled = await settle(
        pool,
        this.#holder,
        ended.map(toSettlement),
        releases.map(({ lane, slot }) => ({ webhook_id: lane.webhook_id, slot })),
      )
      this.#settleFailures = 0
      this.#released(releases)
      this.#settled(ended, settled)
      await recordFailures(
        this.#services,
        ended.filter(item => settled.has(item.delivery.id)),
      ).catch(error => log.error({ err: error }, 'failures of webhooks not counted'))
    } catch (error) {
      if (this.#settleFailures++ === 0) log.error({ err: error }, 'outcomes of deliveries not recorded yet')
      retryMs = RETRY_MS[Math.min(this.#settleFailures - 1, RETRY_MS.length - 1)]
      // Once their lease is over they are sent again, and nothing that is written here would count.
      const now = performance.now()
      const keeps = (item: Ended) => item.until > now && !(this.#closed && this.#settleFailures > RETRY_MS.length)
      for (const item of ended) if (item.ms !== null && !keeps(item)) report(this.#services, item, 'lost')
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
      if (recorded && outcome.decision === 'returned') this.look([delivery])
      if (item.ms === null) continue
      report(this.#services, item, recorded ? outcome.decision : 'lost')
      if (recorded && outcome.retry_ms !== null) this.#lookIn(outcome.retry_ms, delivery)
    }
  }

  /** The slots are free for everybody now. Whoever found none before may have left something: look again. */
  #released(releases: readonly { lane: Lane; slot: number }[]): void {
    for (const { lane, slot } of releases) {
      this.#setSlots(
        lane,
        lane.slots.filter(each => each !== slot),
      )
      lane.releasing = false
      lane.look = true
      // To the end of the line.
      if (this.#lanes.delete(lane.webhook_id)) this.#lanes.set(lane.webhook_id, lane)
    }
    if (this.#closed) for (const { lane } of releases) this.#release(lane)
    // Capacity is back for those who waited for it as well.
    else if (releases.length > 0) this.#claimSoon()
  }

  /** The sweep would find a retry too, seconds late. */
  #lookIn(ms: number, target: Target): void {
    if (this.#closed) return
    const timer = setTimeout(() => {
      this.#retries.delete(timer)
      this.look([target])
    }, ms + 1)
    this.#retries.add(timer)
  }
}

/** How many deliveries are worth claiming ahead for a webhook whose receiver answers as fast as it does. */
const aheadOf = (lane: Lane): number =>
  lane.answerMs === null ? 0 : Math.min(AHEAD_MAX, Math.floor((SLOTS * AHEAD_MS) / Math.max(lane.answerMs, 1)))

const toSettlement = ({ delivery, outcome }: Ended): Settlement => ({
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

/** The one line of an attempt. `lost`: it was made, and meanwhile the delivery was given to another worker. */
function report(services: Services, { delivery, outcome, ms }: Ended, decision: Outcome['decision'] | 'lost'): void {
  deliveries.inc({ outcome: decision })
  const line = {
    delivery_id: delivery.id,
    webhook_id: delivery.webhook_id,
    project_id: delivery.project_id,
    event_id: delivery.event_id,
    event: delivery.event_type,
    attempt: delivery.attempts + 1,
    outcome: outcome.decision === 'done' ? 'completed' : outcome.counted ? 'failed' : outcome.decision,
    status: outcome.status_code,
    ms: Math.round(ms ?? 0),
    decision,
    ...(decision === 'retry' ? { next_ms: Math.round(outcome.retry_ms ?? 0) } : {}),
    ...(outcome.decision === 'done' || outcome.status_code !== null ? {} : { reason: outcome.response_body }),
  }
  if (decision === 'done') services.log.info(line, 'delivery attempt')
  else services.log.warn(line, 'delivery attempt')
}
