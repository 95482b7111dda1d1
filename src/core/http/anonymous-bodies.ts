import { serviceNotReady } from '../base/errors.ts'
import { sharedSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'

/** Maximum share of the memory per sender, so that one sender cannot use all of it. */
const SENDER_SHARE = 1 / 4

/** The memory budget of a process for bodies of requests without a bearer credential. */
class AnonymousBodies {
  readonly #total: number
  #used = 0
  readonly #usedBy = new Map<string, number>()

  constructor(total: number) {
    this.#total = total
  }

  /** Reserves memory for a sender; returns false if none is available. */
  reserve(sender: string, bytes: number): boolean {
    const used = (this.#usedBy.get(sender) ?? 0) + bytes
    if (used > this.#total * SENDER_SHARE || this.#used + bytes > this.#total) return false
    this.#used += bytes
    this.#usedBy.set(sender, used)
    return true
  }

  release(sender: string, bytes: number): void {
    const used = (this.#usedBy.get(sender) ?? 0) - bytes
    this.#used -= bytes
    if (used > 0) this.#usedBy.set(sender, used)
    else this.#usedBy.delete(sender)
  }
}

const bodies = sharedSingleton(({ config }) => new AnonymousBodies(config.HTTP_ANONYMOUS_BODIES_BYTES))

/** Counts received bytes of a body. Throws SERVICE_NOT_READY. */
export type CountBytes = (bytes: number) => void

/**
 * Returns a counter that reserves memory for an anonymous body until its connection or response ends.
 * @param sender key of the share: an address, or the called resource
 */
export function countAnonymous(services: Services, sender: string, closed: AbortSignal): CountBytes {
  const memory = bodies(services)
  let reserved = 0
  closed.addEventListener('abort', () => memory.release(sender, reserved), { once: true })
  return bytes => {
    if (closed.aborted) return
    if (!memory.reserve(sender, bytes))
      throw serviceNotReady(
        { bodies: 'busy' },
        { message: 'Too many request bodies without a bearer credential are in progress', retryAfterSeconds: 1 },
      )
    reserved += bytes
  }
}
