import type { ClaimedDelivery, WebhookTarget } from './delivery-store.ts'
import { SLOTS_PER_WEBHOOK } from './store.ts'

/** Most slots of a process, that is, concurrent posts. */
const PROCESS_SLOTS = 250

/** State of a webhook in this process while it has deliveries. */
export type WebhookLane = WebhookTarget & {
  /** Numbers of the leased slots, and the earliest end of their leases (performance.now). */
  slots: number[]
  slotsUntil: number
  /** Claimed deliveries that wait for a slot. */
  queue: LeasedDelivery[]
  running: number
  /** Whether there may be unclaimed due deliveries. */
  due: boolean
  claiming: boolean
  /** Whether the webhook changed during a claim, whose result is then outdated. */
  stale: boolean
  /** Whether slots are being released; the lane claims again afterwards. */
  releasing: boolean
  /** Smoothed response time of the receiver; null before the first response. */
  answerMs: number | null
}

/** A claimed delivery and the earliest end of its lease. */
export type LeasedDelivery = { delivery: ClaimedDelivery; until: number }

type ProjectUse = { slots: number; lanes: number }

/**
 * Distributes the slots of a process to lanes: one at a time to the project with the fewest slots, and within a project
 * to its webhooks in turn. A project with more slots than a waiting project releases slots after each post.
 */
export class DeliveryScheduler {
  readonly #lanes = new Map<string, WebhookLane>()
  /** Projects with lanes; the most recently served project is last. */
  readonly #projects = new Map<string, ProjectUse>()
  readonly #projectSlots: number
  /** Projects with webhooks that wait for a slot, and the fewest slots of such a project while none is free. */
  #starved = new Set<string>()
  #fewestStarved = Number.POSITIVE_INFINITY
  #leased = 0

  /** @param share largest fraction of the slots for one project */
  constructor(share: number) {
    this.#projectSlots = Math.max(SLOTS_PER_WEBHOOK, Math.ceil(PROCESS_SLOTS * share))
  }

  /** Whether no slot is free. */
  get full(): boolean {
    return this.#leased >= PROCESS_SLOTS
  }

  /** Usage of the slots, for metrics. */
  get slots(): { total: number; held: number; working: number } {
    const working = [...this.#lanes.values()].reduce((sum, { running }) => sum + running, 0)
    return { total: PROCESS_SLOTS, held: this.#leased, working }
  }

  all(): Iterable<WebhookLane> {
    return this.#lanes.values()
  }

  find(webhookId: string): WebhookLane | undefined {
    return this.#lanes.get(webhookId)
  }

  open(target: WebhookTarget): WebhookLane {
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
      this.#projectUse(lane).lanes += 1
    }
    return lane
  }

  close(lane: WebhookLane): void {
    this.#lanes.delete(lane.webhook_id)
    const project = this.#projectUse(lane)
    project.lanes -= 1
    if (project.lanes === 0) this.#projects.delete(lane.project_id)
  }

  #projectUse({ project_id }: WebhookTarget): ProjectUse {
    let project = this.#projects.get(project_id)
    if (!project) {
      project = { slots: 0, lanes: 0 }
      this.#projects.set(project_id, project)
    }
    return project
  }

  setSlots(lane: WebhookLane, slots: number[]): void {
    const difference = slots.length - lane.slots.length
    lane.slots = slots
    this.#leased += difference
    this.#projectUse(lane).slots += difference
  }

  /** Removes a slot from a lane and makes the lane the last to be served in its project. */
  removeSlot(lane: WebhookLane, slot: number): void {
    this.setSlots(
      lane,
      lane.slots.filter(leased => leased !== slot),
    )
    if (this.#lanes.delete(lane.webhook_id)) this.#lanes.set(lane.webhook_id, lane)
  }

  /** Returns the number of free slots for each lane, and remembers the projects that get none. */
  distributeSlots(lanes: readonly WebhookLane[]): Map<WebhookLane, number> {
    const shares = this.#distribute(lanes)
    this.#starved = new Set()
    this.#fewestStarved = Number.POSITIVE_INFINITY
    const free = PROCESS_SLOTS - this.#leased - [...shares.values()].reduce((sum, slots) => sum + slots, 0)
    for (const lane of lanes) {
      if (lane.slots.length > 0 || shares.has(lane)) continue
      this.#starved.add(lane.project_id)
      if (free === 0) this.#fewestStarved = Math.min(this.#fewestStarved, this.#projectUse(lane).slots)
    }
    return shares
  }

  /** Distributes free slots one at a time, up to the share of each project. */
  #distribute(lanes: readonly WebhookLane[]): Map<WebhookLane, number> {
    const shares = new Map<WebhookLane, number>()
    const byProject = Map.groupBy(lanes, lane => lane.project_id)
    const waiting = [...this.#projects].flatMap(([id, { slots }]) => {
      const queue = byProject.get(id)?.filter(lane => lane.slots.length < SLOTS_PER_WEBHOOK) ?? []
      return queue.length > 0 ? [{ slots, queue }] : []
    })
    let free = PROCESS_SLOTS - this.#leased
    for (let level = 0; level < this.#projectSlots && free > 0; level++)
      for (const candidate of waiting) {
        if (candidate.slots > level || candidate.queue.length === 0 || free === 0) continue
        const lane = candidate.queue.shift() as WebhookLane
        const slots = (shares.get(lane) ?? 0) + 1
        shares.set(lane, slots)
        if (slots + lane.slots.length < SLOTS_PER_WEBHOOK) candidate.queue.push(lane)
        candidate.slots += 1
        free -= 1
        // Moves the project to the end, so that it is served last among projects with equally many slots.
        const project = this.#projectUse(lane)
        this.#projects.delete(lane.project_id)
        this.#projects.set(lane.project_id, project)
      }
    return shares
  }

  /** Whether a lane must release slots because a project with fewer slots waits for one. */
  yields(lane: WebhookLane): boolean {
    return this.#starved.has(lane.project_id) || this.#projectUse(lane).slots > this.#fewestStarved
  }
}
