import { serviceNotReady } from '../api/errors.ts'
import { processSingleton } from '../process/process-singleton.ts'
import type { Services } from '../process/services.ts'

/** One sender holds at most this part of the memory, so that others find some left. */
const SENDER_SHARE = 1 / 4

/** Memory of a process for bodies of requests that came without a bearer credential. */
class AnonymousBodies {
  readonly #total: number
  #used = 0
  readonly #usedBy = new Map<string, number>()

  constructor(total: number) {
    this.#total = total
  }

  /** Takes memory for a sender; false where there is none left. */
  take(sender: string, bytes: number): boolean {
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

const bodies = processSingleton(({ config }) => new AnonymousBodies(config.HTTP_ANONYMOUS_BODIES_BYTES))

/** Counts the bytes of one body as they arrive. Throws SERVICE_NOT_READY. */
export type CountBytes = (bytes: number) => void

/**
 * Returns what counts one body against the memory for anonymous ones, until its connection or its answer ends.
 * @param sender shares a part of the memory with other bodies of its own: an address, or what is called
 */
export function countAnonymous(services: Services, sender: string, closed: AbortSignal): CountBytes {
  const memory = bodies(services)
  let held = 0
  closed.addEventListener('abort', () => memory.release(sender, held), { once: true })
  return bytes => {
    if (closed.aborted) return
    if (!memory.take(sender, bytes))
      throw serviceNotReady(
        { bodies: 'busy' },
        { message: 'Too many bodies of requests without a bearer credential are arriving', retryAfterSeconds: 1 },
      )
    held += bytes
  }
}
