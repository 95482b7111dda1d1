/** A pending acquisition. */
type Waiter = { project: string; amount: number; begin: () => void; refuse: (error: Error) => void }

/** Limit of the number of waiters, and the error of a waiter that is refused because of it. */
type QueueLimit = { most: number; full: () => Error }

/**
 * A semaphore over a limited amount of a resource in this process, such as memory, that is fair to projects: the project with
 * the smallest acquired amount is served first, then the one served longest ago. Smaller requests that would fit do not
 * overtake a larger one.
 */
export class FairSemaphore {
  #free: number
  readonly #held = new Map<string, number>()
  #waiting: Waiter[] = []
  /** Sequence number of the last grant of each active project. */
  readonly #grants = new Map<string, number>()
  #sequence = 0
  readonly #queue: QueueLimit | null

  constructor(total: number, queue: QueueLimit | null = null) {
    this.#free = total
    this.#queue = queue
  }

  /**
   * Waits for an amount, which must not exceed the total, and returns the function that releases it.
   * @throws the reason of `signal` if it aborts first; the error of a full queue, for the last waiter of the project with the
   *   most waiters
   */
  async acquire(project: string, amount: number, signal?: AbortSignal): Promise<() => void> {
    signal?.throwIfAborted()
    if (this.#isAvailable(amount)) this.#grant(project, amount)
    else await this.#waitFor(project, amount, signal)
    let released = false
    return () => {
      if (released) return
      released = true
      this.#free += amount
      this.#addHeld(project, -amount)
      this.#grantNext()
    }
  }

  /** Acquires within `ms`, otherwise throws the error of `late`. */
  async acquireWithin(
    project: string,
    amount: number,
    { ms, late, signal }: { ms: number; late: () => Error; signal?: AbortSignal },
  ): Promise<() => void> {
    if (this.#isAvailable(amount)) return this.acquire(project, amount, signal)
    const timeout = new AbortController()
    const timer = setTimeout(() => timeout.abort(late()), ms)
    try {
      return await this.acquire(project, amount, signal ? AbortSignal.any([signal, timeout.signal]) : timeout.signal)
    } finally {
      clearTimeout(timer)
    }
  }

  /** Runs work with an acquired amount. */
  async use<T>(project: string, amount: number, signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    const release = await this.acquire(project, amount, signal)
    try {
      return await work()
    } finally {
      release()
    }
  }

  /** Waits until an amount is granted. */
  #waitFor(project: string, amount: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const refuse = (error: Error) => {
        signal?.removeEventListener('abort', onAbort)
        this.#waiting = this.#waiting.filter(other => other !== waiter)
        // The waiters after it may now fit.
        this.#grantNext()
        reject(error)
      }
      const onAbort = () => refuse(signal?.reason)
      const begin = () => {
        signal?.removeEventListener('abort', onAbort)
        resolve()
      }
      const waiter: Waiter = { project, amount, begin, refuse }
      signal?.addEventListener('abort', onAbort, { once: true })
      this.#waiting.push(waiter)
      this.#grantNext()
      if (this.#queue && this.#waiting.length > this.#queue.most) this.#last().refuse(this.#queue.full())
    })
  }

  /** Whether the amount is available and there are no waiters. */
  #isAvailable(amount: number): boolean {
    return this.#waiting.length === 0 && amount <= this.#free
  }

  #grant(project: string, amount: number): void {
    this.#free -= amount
    this.#addHeld(project, amount)
    this.#grants.set(project, ++this.#sequence)
  }

  #grantNext(): void {
    for (;;) {
      const [first] = this.#waiting.toSorted((one, other) => this.#compare(one.project, other.project))
      if (!first || first.amount > this.#free) break
      this.#waiting = this.#waiting.filter(other => other !== first)
      this.#grant(first.project, first.amount)
      first.begin()
    }
    for (const project of this.#grants.keys())
      if (!this.#held.has(project) && !this.#waiting.some(waiter => waiter.project === project))
        this.#grants.delete(project)
  }

  /** Returns the last waiter of the project with the most waiters. */
  #last(): Waiter {
    let last = this.#waiting[this.#waiting.length - 1]
    const byProject = Map.groupBy(this.#waiting, ({ project }) => project)
    const count = (waiter: Waiter) => byProject.get(waiter.project)?.length ?? 0
    for (const waiter of this.#waiting.toReversed()) if (count(waiter) > count(last)) last = waiter
    return last
  }

  #compare(one: string, other: string): number {
    const held = (project: string) => this.#held.get(project) ?? 0
    const lastGrant = (project: string) => this.#grants.get(project) ?? 0
    return held(one) - held(other) || lastGrant(one) - lastGrant(other)
  }

  #addHeld(project: string, amount: number): void {
    const held = (this.#held.get(project) ?? 0) + amount
    if (held > 0) this.#held.set(project, held)
    else this.#held.delete(project)
  }
}
