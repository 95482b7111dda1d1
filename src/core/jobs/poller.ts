import { setTimeout as sleep } from 'node:timers/promises'
import type { Services } from '../process/services.ts'
import { type QueueBacklog, readBacklog } from './message-claims.ts'
import type { QueueConsumer } from './queue-consumer.ts'

/**
 * The floor under notifications: polls all queues of the process with one statement, and wakes the loops that have
 * something to claim or to take over. It polls again when the next message is due or loses its lease, at the latest after
 * an interval that doubles from `pollMs` to `idleMs` for as long as nothing is due. While notifications do not arrive the
 * interval is `pollMs`. Two polls are never closer than about `pollMs`.
 */
export class QueuePoller {
  readonly #services: Pick<Services, 'queues' | 'log'>
  readonly #loops: ReadonlyMap<string, QueueConsumer>
  readonly #pollMs: number
  readonly #idleMs: number
  readonly #hears: () => boolean
  readonly #onPoll: (() => unknown) | undefined
  readonly #stopped = new AbortController()
  #asked = false
  #wake: (() => void) | undefined

  constructor(options: {
    services: Pick<Services, 'queues' | 'log'>
    loops: ReadonlyMap<string, QueueConsumer>
    pollMs: number
    idleMs: number
    /** Whether notifications arrive. */
    notificationsHealthy: () => boolean
    onPoll?: () => unknown
  }) {
    this.#services = options.services
    this.#loops = options.loops
    this.#pollMs = options.pollMs
    // A lease that begins after one poll is known with the next, before it ends.
    const leases = [...options.loops.values()].map(({ queue }) => queue.leaseSeconds * 1000)
    this.#idleMs = Math.max(options.pollMs, Math.min(options.idleMs, ...leases))
    this.#hears = options.notificationsHealthy
    this.#onPoll = options.onPoll
  }

  start(): void {
    void this.#run()
  }

  /** There may be something to wait for that the last poll did not see. */
  pollSoon(): void {
    this.#asked = true
    this.#wake?.()
  }

  stop(): void {
    this.#stopped.abort()
    this.#wake?.()
  }

  async #run(): Promise<void> {
    const { log } = this.#services
    let interval = this.#pollMs
    let failures = 0
    while (!this.#stopped.signal.aborted) {
      this.#asked = false
      let nextMs = Number.POSITIVE_INFINITY
      try {
        const found = await this.#poll()
        if (failures > 0) log.info('queues reachable again')
        failures = 0
        nextMs = Math.min(...found.map(queue => queue.nextMs ?? nextMs))
        const quiet = !found.some(({ due, expired }) => due || expired)
        interval = quiet ? Math.min(interval * 2, this.#idleMs) : this.#pollMs
      } catch (error) {
        if (failures === 0 && !this.#stopped.signal.aborted) log.error({ err: error }, 'queues not reachable')
        failures += 1
        interval = this.#pollMs
      }
      // Spread over the interval, so that many processes do not poll at one instant.
      await this.#pause(Math.min(interval * (0.8 + Math.random() * 0.2), nextMs + 1))
    }
  }

  async #poll(): Promise<QueueBacklog[]> {
    const served = [...this.#loops.values()].map(({ queue }) => queue)
    const found = await readBacklog(this.#services.queues.db, served)
    if (this.#stopped.signal.aborted) return []
    for (const { name, due, expired } of found) {
      if (due) this.#loops.get(name)?.claimNow()
      if (expired) void this.#loops.get(name)?.takeOverExpired()
    }
    this.#report()
    return found
  }

  #report(): void {
    const failed = (error: unknown) => this.#services.log.error({ err: error }, 'poll report failed')
    try {
      Promise.resolve(this.#onPoll?.()).catch(failed)
    } catch (error) {
      failed(error)
    }
  }

  /** Waits for `ms`, or until a poll is asked for; at least for about `pollMs`. */
  async #pause(ms: number): Promise<void> {
    const { signal } = this.#stopped
    const least = this.#pollMs * 0.8
    await sleep(least, undefined, { signal }).catch(() => {})
    if (ms <= least || this.#asked || signal.aborted) return
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>(resolve => {
      this.#wake = resolve
      timer = setTimeout(resolve, (this.#hears() ? ms : Math.min(ms, this.#pollMs)) - least)
    })
    clearTimeout(timer)
    this.#wake = undefined
  }
}
