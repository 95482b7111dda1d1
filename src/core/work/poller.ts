import { setTimeout as sleep } from 'node:timers/promises'
import { runLoopOnce } from '../base/loop.ts'
import type { Services } from '../base/services.ts'
import { type QueueBacklog, readBacklog } from './message-claims.ts'
import type { QueueConsumer } from './queue-consumer.ts'

/**
 * Fallback for lost notifications: polls all queues of the process with one statement and wakes the consumers that have
 * messages to claim, to take over or to return. The next poll is when the next message is due or its lease expires, at
 * the latest after an interval that doubles from `pollMs` to `idleMs` while nothing is due. While notifications do not arrive the
 * interval is `pollMs`. Polls are at least about `pollMs` apart from each other.
 */
export class QueuePoller {
  readonly #services: Pick<Services, 'queues' | 'log'>
  readonly #consumers: ReadonlyMap<string, QueueConsumer>
  readonly #pollMs: number
  readonly #idleMs: number
  readonly #notificationsHealthy: () => boolean
  readonly #onSuspects: () => void
  readonly #onPoll: (() => unknown) | undefined
  readonly #stopped = new AbortController()
  #pollRequested = false
  #wake: (() => void) | undefined

  constructor(options: {
    services: Pick<Services, 'queues' | 'log'>
    consumers: ReadonlyMap<string, QueueConsumer>
    pollMs: number
    idleMs: number
    /** Whether notifications arrive. */
    notificationsHealthy: () => boolean
    /** Called when suspects wait (quarantine.ts). */
    onSuspects: () => void
    onPoll?: () => unknown
  }) {
    this.#services = options.services
    this.#consumers = options.consumers
    this.#pollMs = options.pollMs
    // At most one lease, so that a lease which begins after a poll is read by the next one, before it expires.
    const leases = [...options.consumers.values()].map(({ queue }) => queue.leaseSeconds * 1000)
    this.#idleMs = Math.max(options.pollMs, Math.min(options.idleMs, ...leases))
    this.#notificationsHealthy = options.notificationsHealthy
    this.#onSuspects = options.onSuspects
    this.#onPoll = options.onPoll
  }

  start(): void {
    void this.#run()
  }

  /** Requests an early poll, for messages stored after the last one. */
  pollSoon(): void {
    this.#pollRequested = true
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
      this.#pollRequested = false
      let nextMs = Number.POSITIVE_INFINITY
      try {
        const found = await runLoopOnce('queue poll', this.#idleMs, () => this.#poll())
        if (failures > 0) log.info('queues recovered')
        failures = 0
        nextMs = Math.min(...found.map(queue => queue.nextMs ?? nextMs))
        const isIdle = !found.some(each => each.due || each.expired || each.suspects || each.unheld)
        interval = isIdle ? Math.min(interval * 2, this.#idleMs) : this.#pollMs
      } catch (error) {
        if (failures === 0 && !this.#stopped.signal.aborted) log.error({ err: error }, 'queues unreachable')
        failures += 1
        interval = this.#pollMs
      }
      // Jitter, so that processes do not poll simultaneously.
      await this.#pause(Math.min(interval * (0.8 + Math.random() * 0.2), nextMs + 1))
    }
  }

  async #poll(): Promise<QueueBacklog[]> {
    const consumers = [...this.#consumers.values()]
    const polled = consumers.map(({ queue }) => queue)
    const held = consumers.flatMap(({ heldIds }) => heldIds)
    const found = await readBacklog(this.#services.queues.db, polled, held)
    if (this.#stopped.signal.aborted) return []
    for (const { name, due, expired, suspects, unheld } of found) {
      if (due) this.#consumers.get(name)?.claimNow()
      if (expired) void this.#consumers.get(name)?.takeOverExpired().then(this.#onSuspects)
      if (unheld) void this.#consumers.get(name)?.returnUnheld()
      if (suspects) this.#onSuspects()
    }
    this.#callOnPoll()
    return found
  }

  #callOnPoll(): void {
    const onFailed = (error: unknown) => this.#services.log.error({ err: error }, 'poll report failed')
    try {
      Promise.resolve(this.#onPoll?.()).catch(onFailed)
    } catch (error) {
      onFailed(error)
    }
  }

  /** Waits for `ms` or until a poll is requested, but at least for about `pollMs`. */
  async #pause(ms: number): Promise<void> {
    const { signal } = this.#stopped
    const least = this.#pollMs * 0.8
    await sleep(least, undefined, { signal }).catch(() => {})
    if (ms <= least || this.#pollRequested || signal.aborted) return
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>(resolve => {
      this.#wake = resolve
      timer = setTimeout(resolve, (this.#notificationsHealthy() ? ms : Math.min(ms, this.#pollMs)) - least)
    })
    clearTimeout(timer)
    this.#wake = undefined
  }
}
