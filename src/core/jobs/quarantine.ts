import { setTimeout as sleep } from 'node:timers/promises'
import type { Services } from '../process/services.ts'
import { claimSuspect, endProbation, findSuspect, MAX_WORKER_LOSSES, workerLosses } from './message-claims.ts'
import type { QueueConsumer } from './queue-consumer.ts'

/** Time for which other messages wait for the end of a suspect that was active in one lost worker. */
const PROBATION_MS = 2000

/** Longest wait for the end of the messages in progress: before a probation, and before a run that is strictly alone. */
const DRAIN_MS = { probation: 5000, strict: 60_000 }

/**
 * Runs the suspects of this process: messages that were active when a worker was lost, one of which may have stalled or
 * killed it. A suspect runs while the process claims nothing else. After two seconds without a loss the next suspects and
 * other messages follow, so that long innocent messages do not wait for each other; a suspect of three lost workers runs
 * alone to its end. A message that kills its workers within two seconds therefore kills three, any other four, the last one
 * alone, and no other message fails for it.
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
        const alone = await this.#drain(losses >= MAX_WORKER_LOSSES)
        if (this.#stopping.aborted) return
        const suspect = await claimSuspect(db, names, { alone })
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
    if (losses >= MAX_WORKER_LOSSES) return ended
    const hasEnded = await Promise.race([ended?.then(() => true), sleep(PROBATION_MS, false)])
    if (!hasEnded) await endProbation(this.#services.queues.db, queue, claim)
  }

  #pause(paused: boolean): void {
    for (const consumer of this.#consumers.values()) consumer.pause(paused)
  }

  /**
   * Waits until no message is in progress, or no other than suspects past their probation, or until the limit. Returns
   * whether none is.
   */
  async #drain(isStrict: boolean): Promise<boolean> {
    const until = performance.now() + (isStrict ? DRAIN_MS.strict : DRAIN_MS.probation)
    const isIdle = (except: ReadonlySet<string>) =>
      [...this.#consumers.values()].every(consumer => consumer.isIdle(except))
    while (!isIdle(isStrict ? NONE : this.#suspects) && performance.now() < until && !this.#stopping.aborted)
      await sleep(10)
    return isIdle(NONE)
  }
}

const NONE: ReadonlySet<string> = new Set()
