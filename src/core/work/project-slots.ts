import type { SlotHolder } from '../net/hanging-calls.ts'
import { NO_PROJECT } from '../queues/queue.ts'
import type { AcquiredSlot, QueueSlots } from './handler.ts'

/** Slots of a process for one kind of work, with a limit of the slots that one project holds. */
export class ProjectSlots {
  readonly total: number
  /** Slots that one project may hold while other projects wait. */
  readonly share: number
  /** Slots that one project may hold while no other project waits. */
  readonly borrow: number
  /** Slots in use by project; work without a project is not limited. */
  readonly byProject = new Map<string, number>()
  #used = 0
  #acquired = 0
  readonly #countsProjects: boolean
  readonly #onReleased: () => void

  /**
   * @param options.batch messages of one slot; batches are not counted by project
   * @param options.onReleased called when a slot that `tryAcquire` returned is free again
   */
  constructor({ slots, share }: QueueSlots, { batch = 1, onReleased = () => {} } = {}) {
    const messages = slots * batch
    this.total = slots
    this.share = share
    this.borrow = share < messages ? Math.max(share, messages - 1) : messages
    this.#countsProjects = batch === 1
    this.#onReleased = onReleased
  }

  get used(): number {
    return this.#used
  }

  get free(): number {
    return this.total - this.#used
  }

  /** Slots in use that were acquired by `tryAcquire`. */
  get acquired(): number {
    return this.#acquired
  }

  /** Takes or releases a slot of a project. */
  change(project: string | null, change: 1 | -1): void {
    this.#used += change
    if (!this.#countsProjects || project === null || project === NO_PROJECT) return
    const held = (this.byProject.get(project) ?? 0) + change
    if (held > 0) this.byProject.set(project, held)
    else this.byProject.delete(project)
  }

  /** Acquires a free slot for work of a project without a message. Returns null if there is none for the project. */
  tryAcquire(project: string): AcquiredSlot | null {
    const isAtShare = (this.byProject.get(project) ?? 0) >= this.share && this.#used >= this.borrow
    if (this.free <= 0 || isAtShare) return null
    const changeUse = (change: 1 | -1) => {
      this.#acquired += change
      this.change(project, change)
      if (change === -1) this.#onReleased()
    }
    changeUse(1)
    let waits = 0
    const holder = this.holderOf(project, change => {
      const before = waits
      waits += change
      if (before === 0 || waits === 0) changeUse(change === 1 ? -1 : 1)
    })
    return { holder, release: () => changeUse(-1) }
  }

  /** @param changeWaits adds to the number of reasons for which the slot is released */
  holderOf(project: string, changeWaits: (change: 1 | -1) => void): SlotHolder {
    return {
      project,
      most: Math.max(1, Math.floor(this.total / 2)),
      release: () => {
        changeWaits(1)
        return () => changeWaits(-1)
      },
    }
  }
}
