import { randomUUID } from 'node:crypto'
import { deliveries } from '../../core/process/metrics.ts'
import type { Services } from '../../core/process/services.ts'
import { attempt, type Outcome, returned } from './deliver.ts'
import {
  type ClaimedDelivery,
  type ClaimRequest,
  claimDue,
  type Grant,
  type Settlement,
  settle,
  type Target,
} from './delivery-store.ts'
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
  queue: Leased[]
  running: number
  /** There may be due deliveries that nobody has claimed. */
  due: boolean
  claiming: boolean
  /** The webhook changed while a claim was on its way: what it brings is old. */
  stale: boolean
  /** Slots on their way back; once they are, the lane has to claim again. */
  releasing: boolean
  /** How long an answer of the receiver takes, smoothed; unknown at first. */
  answerMs: number | null
}

/** A claimed delivery and when its lease ends for certain. */
type Leased = { delivery: ClaimedDelivery; until: number }

/** `ms` is null for one that was given back without an attempt. */
type Ended = Leased & { outcome: Outcome; ms: number | null }

type LaneClaim = { lane: Lane; rows: number; slots: number }

/**
 * Sends what is due. The rows are the work: the loop is woken for webhooks with due deliveries, claims these with the slots
 * to send them, posts, and writes the outcomes of many deliveries in one statement.
 *
 * A slot is held only while there is something to send through it. Whoever finds none free leaves the delivery queued:
 * a worker that gives a slot back claims once more afterwards, so that nothing waits for the sweep.
 *
 * Free slots go in turn to the projects that hold the fewest in this process, and in a project to its webhooks in turn.
 * Whoever holds more than a project that waits gives slots back after each post. Every process does so by itself: a
 * delivery that finds one full is announced to the others.
 *
 * Rows are claimed ahead while a receiver is fast, so that the five attempts in flight follow each other without a
 * round trip to the database in between.
 */
export class DeliveryLoop {
  readonly #services: Services
  readonly #holder = randomUUID()
  readonly #lanes = new Map<string, Lane>()
  /** Projects with lanes; those served last are at the end. */
  readonly #projects = new Map<string, { slots: number; lanes: number }>()
  readonly #projectSlots: number
  readonly #abort = new AbortController()
  readonly #retries = new Set<NodeJS.Timeout>()
  /** Projects with webhooks that wait for a slot, and the fewest slots that one of them holds while none is free. */
  #starved = new Set<string>()
  #fewestStarved = Number.POSITIVE_INFINITY
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

  /** No slot is left: other workers should be woken for what is due. */
  get full(): boolean {
    return this.#slotsHeld >= PROCESS_SLOTS
  }

  /** These webhooks may have deliveries due. */
  wake(targets: Iterable<Target>): void {
    if (this.#closed) return
    for (const target of targets) this.#lane(target).due = true
    this.#claimSoon()
  }

  /** A webhook changed: what waits here for a slot is read anew before it is sent. */
  reload(target: Target): void {
    const lane = this.#lanes.get(target.webhook_id)
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
        due: false,
        claiming: false,
        stale: false,
        releasing: false,
        answerMs: null,
      }
      this.#lanes.set(lane.webhook_id, lane)
      this.#project(lane).lanes += 1
    }
    return lane
  }

  #project({ project_id }: Target): { slots: number; lanes: number } {
    let project = this.#projects.get(project_id)
    if (!project) {
      project = { slots: 0, lanes: 0 }
      this.#projects.set(project_id, project)
    }
    return project
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
        let grants: Map<string, Grant>
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
    const open: Lane[] = []
    for (const lane of this.#lanes.values()) {
      if (!lane.due || lane.claiming || lane.releasing) continue
      if (lane.slots.length > 0 && this.#yields(lane)) this.#release(lane)
      // Claiming a few rows at a time would cost a statement for each of them.
      else if (lane.queue.length <= aheadOf(lane) / 2) open.push(lane)
    }
    const shares = this.#shareOut(open)
    const claims: LaneClaim[] = []
    this.#starved = new Set()
    this.#fewestStarved = Number.POSITIVE_INFINITY
    const free = PROCESS_SLOTS - this.#slotsHeld - [...shares.values()].reduce((sum, slots) => sum + slots, 0)
    for (const lane of open) {
      const slots = shares.get(lane) ?? 0
      const held = slots + lane.slots.length
      if (held === 0) {
        this.#starved.add(lane.project_id)
        if (free === 0) this.#fewestStarved = Math.min(this.#fewestStarved, this.#project(lane).slots)
      }
      const rows = held - lane.running - lane.queue.length + aheadOf(lane)
      if (held === 0 || rows <= 0) continue
      lane.due = false
      lane.claiming = true
      claims.push({ lane, rows, slots })
    }
    return claims
  }

  /** Deals the free slots out, one at a time, none beyond a project's share. */
  #shareOut(lanes: readonly Lane[]): Map<Lane, number> {
    const shares = new Map<Lane, number>()
    const byProject = Map.groupBy(lanes, lane => lane.project_id)
    const waiting = [...this.#projects].flatMap(([id, { slots }]) => {
      const queue = byProject.get(id)?.filter(lane => lane.slots.length < SLOTS) ?? []
      return queue.length > 0 ? [{ slots, queue }] : []
    })
    let free = PROCESS_SLOTS - this.#slotsHeld
    for (let level = 0; level < this.#projectSlots && free > 0; level++)
      for (const each of waiting) {
        if (each.slots > level || each.queue.length === 0 || free === 0) continue
        const lane = each.queue.shift() as Lane
        const slots = (shares.get(lane) ?? 0) + 1
        shares.set(lane, slots)
        if (slots + lane.slots.length < SLOTS) each.queue.push(lane)
        each.slots += 1
        free -= 1
        // Among projects that hold equally many it is now served last.
        const project = this.#project(lane)
        this.#projects.delete(lane.project_id)
        this.#projects.set(lane.project_id, project)
      }
    return shares
  }

  #yields(lane: Lane): boolean {
    return this.#starved.has(lane.project_id) || this.#project(lane).slots > this.#fewestStarved
  }

  #granted(lane: Lane, grant: Grant | undefined, rows: number, until: number): void {
    lane.claiming = false
    this.#setSlots(lane, grant?.slots ?? [])
    lane.slotsUntil = until
    const claimed = grant?.deliveries ?? []
    for (const delivery of claimed) lane.queue.push({ delivery, until })
    if (claimed.length === rows) lane.due = true
    if (this.#closed || lane.stale) this.#giveBack(lane)
    lane.stale = false
    this.#start(lane, true)
    this.#release(lane)
  }

  #setSlots(lane: Lane, slots: number[]): void {
    const difference = slots.length - lane.slots.length
    lane.slots = slots
    this.#slotsHeld += difference
    this.#project(lane).slots += difference
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
      void this.#send(lane, lane.queue.shift() as Leased)
    }
    if (lane.due) this.#claimSoon()
  }

  async #send(lane: Lane, leased: Leased): Promise<void> {
    lane.running += 1
    this.#inFlight += 1
    const started = performance.now()
    const until = Math.min(leased.until, lane.slotsUntil)
    const outcome = await attempt(this.#services, leased.delivery, until, this.#abort.signal)
    const ms = performance.now() - started
    lane.running -= 1
    this.#inFlight -= 1
    lane.answerMs = lane.answerMs === null ? ms : lane.answerMs * 0.8 + ms * 0.2
    this.#ended.push({ ...leased, outcome, ms })
    if (lane.queue.length > SLOTS + 2 * aheadOf(lane)) this.#giveBack(lane)
    this.#start(lane, false)
    this.#release(lane)
    this.#settleSoon(this.#ended.length >= SETTLE_BATCH)
  }

  /** Puts what waits for a slot back as it was. */
  #giveBack(lane: Lane): void {
    if (lane.queue.length === 0) return
    for (const leased of lane.queue) this.#ended.push({ ...leased, outcome: returned, ms: null })
    lane.queue = []
    lane.due = true
    this.#release(lane)
    this.#settleSoon(true)
  }

  /** Gives back the slots there is nothing to send through, unless a claim is about to fill them; ends a lane without work. */
  #release(lane: Lane): void {
    if (lane.claiming || lane.releasing) return
    if (lane.due && !this.#closed && !this.#yields(lane)) {
      this.#claimSoon()
      return
    }
    const surplus = lane.queue.length > 0 ? 0 : lane.slots.length - lane.running
    if (surplus > 0) {
      lane.releasing = true
      for (const slot of lane.slots.slice(-surplus)) this.#releases.push({ lane, slot })
      this.#settleSoon(false)
    } else if (lane.slots.length === 0 && lane.running === 0 && lane.queue.length === 0 && !lane.due) {
      this.#lanes.delete(lane.webhook_id)
      const project = this.#project(lane)
      project.lanes -= 1
      if (project.lanes === 0) this.#projects.delete(lane.project_id)
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
      if (recorded && outcome.decision === 'returned') this.wake([delivery])
      if (item.ms === null) continue
      report(this.#services, item, recorded ? outcome.decision : 'lost')
      if (recorded && outcome.retry_ms !== null) this.#wakeIn(outcome.retry_ms, delivery)
    }
  }

  /** The slots are free for everybody now. Who found none before may have left something: claim again. */
  #released(releases: readonly { lane: Lane; slot: number }[]): void {
    for (const { lane, slot } of releases) {
      this.#setSlots(
        lane,
        lane.slots.filter(each => each !== slot),
      )
      lane.releasing = false
      lane.due = true
      // Served last among the webhooks of its project.
      if (this.#lanes.delete(lane.webhook_id)) this.#lanes.set(lane.webhook_id, lane)
    }
    if (this.#closed) for (const { lane } of releases) this.#release(lane)
    // Capacity is back for those who waited for it as well.
    else if (releases.length > 0) this.#claimSoon()
  }

  /** The sweep would find a retry too, seconds late. */
  #wakeIn(ms: number, target: Target): void {
    if (this.#closed) return
    const timer = setTimeout(() => {
      this.#retries.delete(timer)
      this.wake([target])
    }, ms + 1)
    this.#retries.add(timer)
  }
}

/** How many deliveries are worth claiming ahead for a webhook whose receiver answers as fast as it does. */
const aheadOf = (lane: Lane): number =>
  lane.answerMs === null ? 0 : Math.min(AHEAD_MAX, Math.floor((SLOTS * AHEAD_MS) / Math.max(lane.answerMs, 1)))

const toRequest = ({ lane, rows, slots }: LaneClaim): ClaimRequest => ({
  webhook_id: lane.webhook_id,
  rows,
  slots,
  held: lane.slots,
})

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
    ...(outcome.error === undefined ? {} : { err: outcome.error }),
  }
  if (outcome.error !== undefined) services.log.error(line, 'delivery attempt')
  else if (decision === 'done') services.log.info(line, 'delivery attempt')
  else services.log.warn(line, 'delivery attempt')
}
