import { setTimeout as sleep } from 'node:timers/promises'
import { retryWhileUnavailable } from '../db/retry.ts'
import { settledWithin } from '../process/event-loop.ts'
import type { Services } from '../process/services.ts'
import { claimSuspect, endProbation, findSuspect, workerLosses } from './message-claims.ts'
import type { QueueConsumer } from './queue-consumer.ts'
import type { Suspect, SuspectSource } from './suspects.ts'

/** Time for which other work waits for the end of a suspect below its limit of lost workers. */
const PROBATION_MS = 2000

/** The same at its limit. Bounded, because a sweep takes hours: above its limit work fails whatever else was in progress. */
const STRICT_MS = 10_000

/** Time after which a series of probations gives way to other work, and for how long. */
const SERIES_MS = 5000
const OPEN_MS = 2000

/** Longest wait for the end of the work in progress: before a probation, and before a run that is strictly alone. */
const DRAIN_MS = { probation: 5000, strict: 60_000 }

/** Longest wait of a stop for a claim in progress. */
const END_MS = 1000

/**
 * Runs the suspects of this process: work that was active when a worker was lost, and may have stalled or killed it. A
 * suspect runs while the process claims nothing else. After two seconds without a loss the next suspects and other work
 * follow, so that long innocent work does not wait for each other; a suspect at its limit of lost workers, by default two,
 * runs alone for up to ten seconds. After five seconds of probations, other work is claimed for two. Work that kills its workers within two seconds therefore ends with that number, any
 * other with one more.
 */
export class Quarantine {
  readonly #log: Services['log']
  readonly #stopping: AbortSignal
  readonly #strictMs: number
  readonly #sources: SuspectSource[] = []
  /** IDs of the suspects that this process has run. */
  readonly #suspects = new Set<string>()
  #running: Promise<void> | null = null

  constructor(
    { log }: Pick<Services, 'log'>,
    { stopping, strictMs = STRICT_MS }: { stopping: AbortSignal; strictMs?: number },
  ) {
    this.#log = log
    this.#stopping = stopping
    this.#strictMs = strictMs
  }

  add(source: SuspectSource): void {
    this.#sources.push(source)
  }

  /** Runs the suspects that are due, unless it already does. */
  check(): void {
    if (this.#stopping.aborted) return
    this.#running ??= this.#run()
      .catch(error => this.#log.error({ err: error }, 'quarantine failed'))
      .finally(() => {
        this.#running = null
      })
  }

  /** Waits until no suspect is being claimed. The caller aborts the `stopping` signal and ends the work in progress before. */
  async end(): Promise<void> {
    if (this.#running) await settledWithin(END_MS, this.#running)
  }

  async #run(): Promise<void> {
    try {
      let since = performance.now()
      while (!this.#stopping.aborted) {
        const next = await this.#findNext()
        if (next === null) return
        // A killed worker leaves as many suspects as it had messages.
        if (performance.now() - since > SERIES_MS) {
          this.#pause(false)
          await sleep(OPEN_MS, undefined, { signal: this.#stopping }).catch(() => {})
          since = performance.now()
        }
        this.#pause(true)
        const alone = await this.#drain(next.strict)
        if (this.#stopping.aborted) return
        const suspect = await next.source.claim(alone)
        if (suspect) await this.#runSuspect(suspect)
      }
    } finally {
      this.#pause(false)
      this.#suspects.clear()
    }
  }

  /** Returns the source of the suspect with the fewest lost workers. */
  async #findNext(): Promise<(Pick<Suspect, 'losses' | 'strict'> & { source: SuspectSource }) | null> {
    let next: (Pick<Suspect, 'losses' | 'strict'> & { source: SuspectSource }) | null = null
    for (const source of this.#sources) {
      const found = await source.find()
      if (found && (next === null || found.losses < next.losses)) next = { ...found, source }
    }
    return next
  }

  async #runSuspect(suspect: Suspect): Promise<void> {
    const { id, queue, losses, strict } = suspect
    this.#log.warn({ queue, job: id, losses }, 'work quarantined')
    this.#suspects.add(id)
    const ended = suspect.run().then(() => true)
    const hasEnded = await settledWithin(strict ? this.#strictMs : PROBATION_MS, ended)
    // Other work before that is recorded would let the suspect fail for it.
    if (!hasEnded) await retryWhileUnavailable(() => suspect.endProbation(), { signal: this.#stopping })
  }

  #pause(paused: boolean): void {
    for (const source of this.#sources) source.pause(paused)
  }

  /**
   * Waits until nothing is in progress but suspects that ran alone before, or until the limit. Returns whether nothing is.
   */
  async #drain(isStrict: boolean): Promise<boolean> {
    const until = performance.now() + (isStrict ? DRAIN_MS.strict : DRAIN_MS.probation)
    const isIdle = (except: ReadonlySet<string>) => this.#sources.every(source => source.isIdle(except))
    while (!isIdle(this.#suspects) && performance.now() < until && !this.#stopping.aborted) await sleep(10)
    return isIdle(NONE)
  }
}

const NONE: ReadonlySet<string> = new Set()

/** The messages of the consumers of a process. */
export function messageSuspects(
  { queues: { db } }: Pick<Services, 'queues'>,
  consumers: ReadonlyMap<string, QueueConsumer>,
): SuspectSource {
  const names = () => [...consumers.keys()]
  const isStrict = (queue: string, losses: number) => losses >= (consumers.get(queue)?.maxLosses ?? 0)
  return {
    pause(paused) {
      for (const consumer of consumers.values()) consumer.pause(paused)
    },
    isIdle: except => [...consumers.values()].every(consumer => consumer.isIdle(except)),
    async find() {
      const found = await findSuspect(db, names())
      return found && { losses: found.losses, strict: isStrict(found.queue, found.losses) }
    },
    async claim(alone) {
      const claimed = await claimSuspect(db, names(), { alone })
      if (!claimed) return null
      const { queue, ...claim } = claimed
      const losses = workerLosses(claim)
      return {
        id: claim.id,
        queue,
        losses,
        strict: isStrict(queue, losses),
        run: async () => consumers.get(queue)?.runSuspect(claim),
        endProbation: () => endProbation(db, queue, claim),
      }
    },
  }
}
