import { setTimeout as sleep } from 'node:timers/promises'
import { settledWithin } from '../base/event-loop.ts'
import type { Services } from '../base/services.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { NO_PROJECT } from '../queues/queue.ts'
import type { Suspect, SuspectSource } from '../queues/suspects.ts'
import { chargeSuspectTime, claimSuspect, endProbation, findSuspect, workerLosses } from './message-claims.ts'
import type { QueueConsumer } from './queue-consumer.ts'

/** Time for which other work waits for the end of a suspect below its limit of lost workers. */
const PROBATION_MS = 2000

/** The same at its limit. Bounded, because a sweep takes hours: above its limit work fails whatever else was in progress. */
const STRICT_MS = 10_000

/** Time after which suspects give way to other work, and the part of it for which they do. */
const SERIES_MS = 5000
const OPEN_SHARE = 0.4

/** Longest wait for the end of the work in progress: before a probation, and before a run that is strictly alone. */
const DRAIN_MS = { probation: 5000, strict: 60_000 }

/** Longest wait of a stop for a claim in progress. */
const END_MS = 1000

/**
 * Runs the suspects of this process: work that was active when a worker was lost, and may have stalled or killed it. A
 * suspect runs while the process claims nothing else. After two seconds without a loss the next suspects and other work
 * follow, so that long innocent work does not wait for each other; a suspect at its limit of lost workers, by default two,
 * runs alone for up to ten seconds. After five seconds of suspects, other work is claimed for two fifths of their time and of the
 * wait before them; the runs of the suspects of one project take no more than its share of the time (suspects.ts). Work that kills its
 * workers within two seconds therefore ends with that number, any other with one more.
 */
export class Quarantine {
  readonly #log: Services['log']
  readonly #queues: Services['queues']
  readonly #stopping: AbortSignal
  readonly #strictMs: number
  readonly #workers: () => number
  readonly #sources: SuspectSource[] = []
  /** IDs of the suspects that this process has run. */
  readonly #suspects = new Set<string>()
  #running: Promise<void> | null = null
  #paused = false
  /** Time for which suspects paused other work, less the time for which it has been claimed since. */
  #takenMs = 0
  #countedAt = 0

  /** @param options.workers returns the number of live workers */
  constructor(
    { log, queues }: Pick<Services, 'log' | 'queues'>,
    options: { stopping: AbortSignal; strictMs?: number; workers?: () => number },
  ) {
    this.#log = log
    this.#queues = queues
    this.#stopping = options.stopping
    this.#strictMs = options.strictMs ?? STRICT_MS
    this.#workers = options.workers ?? (() => 1)
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
      while (!this.#stopping.aborted) {
        const next = await this.#findNext()
        if (next === null) return
        // A killed worker leaves as many suspects as it had messages.
        const takenMs = this.#countTaken()
        if (takenMs > SERIES_MS) {
          this.#pause(false)
          await sleep(takenMs * OPEN_SHARE, undefined, { signal: this.#stopping }).catch(() => {})
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
    const limitMs = strict ? this.#strictMs : PROBATION_MS
    // In advance, because the suspect may end the process; not for the wait before it, which other projects cause.
    const startedAt = performance.now()
    await this.#charge(suspect, limitMs)
    const hasEnded = await settledWithin(limitMs, suspect.run())
    // Other work before that is recorded would let the suspect fail for it.
    if (!hasEnded) await retryWhileUnavailable(() => suspect.endProbation(), { signal: this.#stopping })
    await this.#charge(suspect, performance.now() - startedAt - limitMs)
  }

  /** Adds time to the account of the project of a suspect. Failures are logged: the suspect has been claimed. */
  async #charge({ project }: Suspect, ms: number): Promise<void> {
    if (project === null) return
    const charge = () => chargeSuspectTime(this.#queues.db, project, ms, this.#workers())
    await retryWhileUnavailable(charge, { signal: this.#stopping }).catch(error =>
      this.#log.error({ err: error, project_id: project }, 'charge of suspect time failed'),
    )
  }

  #countTaken(): number {
    const now = performance.now()
    const ms = now - this.#countedAt
    this.#countedAt = now
    this.#takenMs = this.#paused ? this.#takenMs + ms : Math.max(0, this.#takenMs - ms / OPEN_SHARE)
    return this.#takenMs
  }

  #pause(paused: boolean): void {
    this.#countTaken()
    this.#paused = paused
    for (const source of this.#sources) source.pause(paused)
  }

  /**
   * Waits until nothing is in progress but suspects that ran alone before and work that waits for other work, or until the
   * limit. Returns whether nothing is.
   */
  async #drain(isStrict: boolean): Promise<boolean> {
    const until = performance.now() + (isStrict ? DRAIN_MS.strict : DRAIN_MS.probation)
    const isIdle = (except: ReadonlySet<string>) => this.#sources.every(source => source.isIdle(except))
    while (!isIdle(this.#suspects) && performance.now() < until && !this.#stopping.aborted) await sleep(10)
    return this.#sources.every(source => source.isEmpty())
  }
}

/** The messages of the consumers of a process. */
export function messageSuspects(
  { queues: { db } }: Pick<Services, 'queues'>,
  consumers: ReadonlyMap<string, QueueConsumer>,
): SuspectSource {
  const versions = () => Object.fromEntries([...consumers].map(([name, { queue }]) => [name, queue.version]))
  const isStrict = (queue: string, losses: number) => losses >= (consumers.get(queue)?.maxLosses ?? 0)
  return {
    pause(paused) {
      for (const consumer of consumers.values()) consumer.pause(paused)
    },
    isIdle: except => [...consumers.values()].every(consumer => consumer.isIdle(except)),
    isEmpty: () => [...consumers.values()].every(consumer => consumer.isEmpty()),
    async find() {
      const found = await findSuspect(db, versions())
      return found && { losses: found.losses, strict: isStrict(found.queue, found.losses) }
    },
    async claim(alone) {
      const claimed = await claimSuspect(db, versions(), { alone })
      if (!claimed) return null
      const { queue, ...claim } = claimed
      const losses = workerLosses(claim)
      return {
        id: claim.id,
        project: claim.project === NO_PROJECT ? null : claim.project,
        queue,
        losses,
        strict: isStrict(queue, losses),
        run: async () => (await consumers.get(queue)?.runSuspect(claim)) ?? true,
        endProbation: () => endProbation(db, queue, claim),
      }
    },
  }
}
