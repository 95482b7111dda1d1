import type { ClaimedDelivery, WebhookTarget } from './delivery-store.ts'
import { SLOTS_PER_WEBHOOK } from './store.ts'

/** Slots one process holds at most: the posts it has in flight. */
const PROCESS_SLOTS = 250

/** What this process does for one webhook. It exists while there is something to do. */
export type WebhookLane = WebhookTarget & {
  /** Numbers of the slots held, and until when for certain (performance.now). */
  slots: number[]
  slotsUntil: number
  /** Claimed, waiting for a slot. */
  queue: LeasedDelivery[]
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
export type LeasedDelivery = { delivery: ClaimedDelivery; until: number }

type Project = { slots: number; lanes: number }

/**
 * The lanes of a process, and how its slots are shared out: in turn to the projects that hold the fewest, and in a
 * project to its webhooks in turn. Whoever holds more than a project that waits has to give slots back after each post.
 */
export class DeliveryScheduler {
  readonly #lanes = new Map<string, WebhookLane>()
  /** Projects with lanes; those served last are at the end. */
  readonly #projects = new Map<string, Project>()
  readonly #projectSlots: number
  /** Projects with webhooks that wait for a slot, and the fewest slots that one of them holds while none is free. */
  #starved = new Set<string>()
  #fewestStarved = Number.POSITIVE_INFINITY
  #held = 0

  /** @param share the part of the slots that one project may hold */
  constructor(share: number) {
    this.#projectSlots = Math.max(SLOTS_PER_WEBHOOK, Math.ceil(PROCESS_SLOTS * share))
  }

  /** No slot is left. */
  get full(): boolean {
    return this.#held >= PROCESS_SLOTS
  }

  /** How the slots of the process are used. */
  get slots(): { total: number; held: number; working: number } {
    const working = [...this.#lanes.values()].reduce((sum, { running }) => sum + running, 0)
    return { total: PROCESS_SLOTS, held: this.#held, working }
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
      this.#project(lane).lanes += 1
    }
    return lane
  }

  close(lane: WebhookLane): void {
    this.#lanes.delete(lane.webhook_id)
    const project = this.#project(lane)
    project.lanes -= 1
    if (project.lanes === 0) this.#projects.delete(lane.project_id)
  }

  #project({ project_id }: WebhookTarget): Project {
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
    this.#held += difference
    this.#project(lane).slots += difference
  }

  /** Takes a slot from a lane, which is served last among the webhooks of its project from now on. */
  takeSlot(lane: WebhookLane, slot: number): void {
    this.setSlots(
      lane,
      lane.slots.filter(each => each !== slot),
    )
    if (this.#lanes.delete(lane.webhook_id)) this.#lanes.set(lane.webhook_id, lane)
  }

  /** How many of the free slots each of some lanes gets. Notes which projects get none. */
  shareOut(lanes: readonly WebhookLane[]): Map<WebhookLane, number> {
    const shares = this.#deal(lanes)
    this.#starved = new Set()
    this.#fewestStarved = Number.POSITIVE_INFINITY
    const free = PROCESS_SLOTS - this.#held - [...shares.values()].reduce((sum, slots) => sum + slots, 0)
    for (const lane of lanes) {
      if (lane.slots.length > 0 || shares.has(lane)) continue
      this.#starved.add(lane.project_id)
      if (free === 0) this.#fewestStarved = Math.min(this.#fewestStarved, this.#project(lane).slots)
    }
    return shares
  }

  /** Deals the free slots out, one at a time, none beyond a project's share. */
  #deal(lanes: readonly WebhookLane[]): Map<WebhookLane, number> {
    const shares = new Map<WebhookLane, number>()
    const byProject = Map.groupBy(lanes, lane => lane.project_id)
    const waiting = [...this.#projects].flatMap(([id, { slots }]) => {
      const queue = byProject.get(id)?.filter(lane => lane.slots.length < SLOTS_PER_WEBHOOK) ?? []
      return queue.length > 0 ? [{ slots, queue }] : []
    })
    let free = PROCESS_SLOTS - this.#held
    for (let level = 0; level < this.#projectSlots && free > 0; level++)
      for (const each of waiting) {
        if (each.slots > level || each.queue.length === 0 || free === 0) continue
        const lane = each.queue.shift() as WebhookLane
        const slots = (shares.get(lane) ?? 0) + 1
        shares.set(lane, slots)
        if (slots + lane.slots.length < SLOTS_PER_WEBHOOK) each.queue.push(lane)
        each.slots += 1
        free -= 1
        // Among projects that hold equally many it is now served last.
        const project = this.#project(lane)
        this.#projects.delete(lane.project_id)
        this.#projects.set(lane.project_id, project)
      }
    return shares
  }

  /** Whether a lane has to give slots back, because a project that holds fewer waits for one. */
  yields(lane: WebhookLane): boolean {
    return this.#starved.has(lane.project_id) || this.#project(lane).slots > this.#fewestStarved
  }
}
