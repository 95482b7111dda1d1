import { setTimeout as sleep } from 'node:timers/promises'
import type { Services } from '../process/services.ts'
import { claimSuspect, findSuspect, workerLosses } from './message-claims.ts'
import type { QueueConsumer } from './queue-consumer.ts'

/** Time for which other messages wait for the end of a suspect that was active in one lost worker. */
const PROBATION_MS = 1000

/** Longest wait for the end of the messages in progress, by the number of workers lost with the suspect. */
const DRAIN_MS = { once: 2000, again: 60_000 }

/**
 * Runs the suspects of this process: messages that were active when a worker was lost, one of which may have stalled or
 * killed it. A suspect runs while the process claims nothing else. After a second without a loss the next suspects and
 * other messages follow, so that long innocent messages do not wait for each other; a suspect of two lost workers runs
 * alone to its end. A message that kills its workers therefore kills at most three, the third one alone, and only its
 * own count reaches the limit.
 */
export class Quarantine {
  readonly #services: Pick<Services, 'queues' | 'log'>
  readonly #consumers: ReadonlyMap<string, QueueConsumer>
  readonly #stopping: AbortSignal
  /** IDs of the suspects that this process has run. */
  readonly #suspects = new Set<string>()
  #running: Promise<void> | null = null

  constructor(options: {
    services: Pick<Services, 'queues' | 'log'>
    consumers: ReadonlyMap<string, QueueConsumer>
    stopping: AbortSignal
  }) {
    this.#services = options.services
    this.#consumers = options.consumers
    this.#stopping = options.stopping
  }

  /** Runs the suspects that are due, unless it already does. */
  check(): void {
    if (this.#stopping.aborted) return
    this.#running ??= this.#run()
      .catch(error => this.#services.log.error({ err: error }, 'quarantine failed'))
      .finally(() => {
        this.#running = null
      })
  }

  async #run(): Promise<void> {
    const { db } = this.#services.queues
    const names = [...this.#consumers.keys()]
    try {
      while (!this.#stopping.aborted) {
        const losses = await findSuspect(db, names)
        if (losses === null) return
        this.#pause(true)
        const isAlone = losses > 1
        await this.#drain(isAlone)
        if (this.#stopping.aborted) return
        const suspect = await claimSuspect(db, names)
        if (suspect) await this.#runSuspect(suspect)
      }
    } finally {
      this.#pause(false)
      this.#suspects.clear()
    }
  }

  async #runSuspect({ queue, ...claim }: NonNullable<Awaited<ReturnType<typeof claimSuspect>>>): Promise<void> {
    const losses = workerLosses(claim)
    this.#services.log.warn({ queue, job: claim.id, losses }, 'message quarantined')
    this.#suspects.add(claim.id)
    const ended = this.#consumers.get(queue)?.runSuspect(claim)
    await (losses > 1 ? ended : Promise.race([ended, sleep(PROBATION_MS)]))
  }

  #pause(paused: boolean): void {
    for (const consumer of this.#consumers.values()) consumer.pause(paused)
  }

  /** Waits until no message is in progress, except other suspects past their probation, or until the limit. */
  async #drain(isAlone: boolean): Promise<void> {
    const until = performance.now() + (isAlone ? DRAIN_MS.again : DRAIN_MS.once)
    const isDrained = () =>
      [...this.#consumers.values()].every(consumer => consumer.isIdle(isAlone ? new Set<string>() : this.#suspects))
    while (!isDrained() && performance.now() < until && !this.#stopping.aborted) await sleep(10)
  }
}
