import { AsyncLocalStorage } from 'node:async_hooks'
import { settledWithin } from '../base/event-loop.ts'
import { reportSlots } from '../base/metrics.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { withTenant } from '../db/tenant-context.ts'
import { withSlotHolder } from '../net/hanging-calls.ts'
import type { Queue } from '../queues/queue.ts'
import { type AcquiredSlot, fairShare, type JobContext } from './handler.ts'
import { ProjectSlots } from './project-slots.ts'

/** Context of work without a message. */
export type LocalContext = Pick<JobContext, 'signal' | 'stopping' | 'log' | 'releaseSlotWhile'>

/** A slot for work of a project, which is released when the work ends, or by `release` if there is none. */
export type LocalSlot = {
  /**
   * Executes work in the background.
   * @param queue of the messages that the work replaces, for logs
   */
  run(queue: Pick<Queue<never>, 'name'>, work: (context: LocalContext) => Promise<unknown>): void
  release(): void
}

/** Time that work has after the hard stop. */
const HARD_STOP_MS = 1000

/**
 * Work that a web process executes itself for requests that wait for it (WEB_EXECUTES), instead of sending a message. The row
 * of the work has HOLDER of this process; other processes take the work over when its heartbeats end (`leaseHolding`).
 */
export class LocalWork {
  readonly #services: Services
  readonly #slots: ProjectSlots
  /** Whether other processes have a recent heartbeat of this one. */
  readonly #isAlive: () => boolean
  readonly #stopReport: () => void
  readonly #running = new Set<Promise<void>>()
  readonly #stopping = new AbortController()
  readonly #hardStop = new AbortController()
  /** Runs work outside the async context of the request that starts it. */
  readonly #detached = AsyncLocalStorage.snapshot()

  constructor(services: Services, isAlive: () => boolean) {
    const { WORKER_CONCURRENCY: slots, PROJECT_WORKER_SHARE: projectShare } = services.config
    this.#services = services
    this.#slots = new ProjectSlots({ slots, share: fairShare(slots, projectShare) })
    this.#isAlive = isAlive
    this.#stopReport = reportSlots(services, () => {
      const { total, used } = this.#slots
      return [{ queue: 'web', total, held: used, working: used }]
    })
  }

  /** Acquires a slot. Returns null if there is none for the project, or this process is stopping. */
  tryAcquire(project: string): LocalSlot | null {
    const slot = this.#stopping.signal.aborted || !this.#isAlive() ? null : this.#slots.tryAcquire(project)
    return slot && { release: slot.release, run: ({ name }, work) => this.#run(name, slot, work) }
  }

  #run(name: string, { holder, release }: AcquiredSlot, work: (context: LocalContext) => Promise<unknown>): void {
    const { log } = this.#services
    const context: LocalContext = {
      signal: this.#hardStop.signal,
      stopping: this.#stopping.signal,
      log: log.child({ queue: name }),
      async releaseSlotWhile(work) {
        const reacquire = holder.release()
        try {
          return await work()
        } finally {
          reacquire()
        }
      },
    }
    const tenant = { tenant: holder.project, patienceMs: Number.POSITIVE_INFINITY, work: name }
    const running: Promise<void> = this.#detached(() =>
      withTenant(tenant, () => withSlotHolder(holder, () => work(context)))
        .catch(error => log.error({ err: error, queue: name }, 'local work failed'))
        .then(() => {
          release()
          this.#running.delete(running)
        }),
    )
    this.#running.add(running)
  }

  /** Accepts no more work, waits for running work up to `graceMs`, then aborts it. */
  async stop(graceMs: number): Promise<void> {
    this.#stopping.abort(new Error('web stopping'))
    await this.#ended(graceMs)
    this.#hardStop.abort(new Error('web stopped'))
    await this.#ended(HARD_STOP_MS)
    this.#stopReport()
  }

  #ended(withinMs: number): Promise<unknown> {
    return settledWithin(withinMs, Promise.all(this.#running))
  }
}

const opened = processSingleton<{ work: LocalWork | null }>(() => ({ work: null }))

/** Opens the execution of work in a web process. */
export function openLocalWork(services: Services, isAlive: () => boolean): LocalWork {
  const work = new LocalWork(services, isAlive)
  opened(services).work = work
  return work
}

/** Returns the local work of this process; null in workers, and in web processes without WEB_EXECUTES. */
export const localWork = (services: Services): LocalWork | null => opened(services).work
