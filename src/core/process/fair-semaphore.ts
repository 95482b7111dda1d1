/** Who waits for a part of something. */
type Waiter = { project: string; amount: number; begin: () => void; refuse: (error: Error) => void }

/** How many may wait, and the error of whom is refused because more do. */
type Queue = { most: number; full: () => Error }

/**
 * Gives out a bounded amount of something in this process, such as memory, to projects in turn: the project that holds
 * least goes first, and of those the one whose last turn was longest ago. Nobody is passed over because less would fit.
 */
export class FairSemaphore {
  #free: number
  readonly #held = new Map<string, number>()
  #waiting: Waiter[] = []
  /** When each project that holds something or waits had its last turn. */
  readonly #turns = new Map<string, number>()
  #turn = 0
  readonly #queue: Queue | null

  constructor(total: number, queue: Queue | null = null) {
    this.#free = total
    this.#queue = queue
  }

  /**
   * Waits for a part, and gives what returns it. It must not be more than there is in all.
   * @throws the reason of `signal` when that aborts first; the error of a full queue, as the last of the project of which
   *   most wait
   */
  async acquire(project: string, amount: number, signal?: AbortSignal): Promise<() => void> {
    signal?.throwIfAborted()
    if (this.#isFree(amount)) this.#give(project, amount)
    else await this.#turnOf(project, amount, signal)
    let returned = false
    return () => {
      if (returned) return
      returned = true
      this.#free += amount
      this.#hold(project, -amount)
      this.#next()
    }
  }

  /** The same, waiting no longer than `ms`: then the error of `late` is thrown. */
  async acquireWithin(
    project: string,
    amount: number,
    { ms, late, signal }: { ms: number; late: () => Error; signal?: AbortSignal },
  ): Promise<() => void> {
    if (this.#isFree(amount)) return this.acquire(project, amount, signal)
    const over = new AbortController()
    const timer = setTimeout(() => over.abort(late()), ms)
    try {
      return await this.acquire(project, amount, signal ? AbortSignal.any([signal, over.signal]) : over.signal)
    } finally {
      clearTimeout(timer)
    }
  }

  /** Does work with a part. */
  async use<T>(project: string, amount: number, signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    const giveBack = await this.acquire(project, amount, signal)
    try {
      return await work()
    } finally {
      giveBack()
    }
  }

  /** Waits for a part until it is given. */
  #turnOf(project: string, amount: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const refuse = (error: Error) => {
        signal?.removeEventListener('abort', leave)
        this.#waiting = this.#waiting.filter(other => other !== waiter)
        // What waited behind it may fit.
        this.#next()
        reject(error)
      }
      const leave = () => refuse(signal?.reason)
      const begin = () => {
        signal?.removeEventListener('abort', leave)
        resolve()
      }
      const waiter: Waiter = { project, amount, begin, refuse }
      signal?.addEventListener('abort', leave, { once: true })
      this.#waiting.push(waiter)
      this.#next()
      if (this.#queue && this.#waiting.length > this.#queue.most) this.#last().refuse(this.#queue.full())
    })
  }

  /** Whether nobody waits, and there is so much. */
  #isFree(amount: number): boolean {
    return this.#waiting.length === 0 && amount <= this.#free
  }

  #give(project: string, amount: number): void {
    this.#free -= amount
    this.#hold(project, amount)
    this.#turns.set(project, ++this.#turn)
  }

  #next(): void {
    for (;;) {
      const [first] = this.#waiting.toSorted((one, other) => this.#compare(one.project, other.project))
      if (!first || first.amount > this.#free) break
      this.#waiting = this.#waiting.filter(other => other !== first)
      this.#give(first.project, first.amount)
      first.begin()
    }
    for (const project of this.#turns.keys())
      if (!this.#held.has(project) && !this.#waiting.some(waiter => waiter.project === project))
        this.#turns.delete(project)
  }

  /** Who came last of the project of which most wait. */
  #last(): Waiter {
    let last = this.#waiting[this.#waiting.length - 1]
    const count = Map.groupBy(this.#waiting, ({ project }) => project)
    const crowd = (waiter: Waiter) => count.get(waiter.project)?.length ?? 0
    for (const waiter of this.#waiting.toReversed()) if (crowd(waiter) > crowd(last)) last = waiter
    return last
  }

  #compare(one: string, other: string): number {
    const held = (project: string) => this.#held.get(project) ?? 0
    const turn = (project: string) => this.#turns.get(project) ?? 0
    return held(one) - held(other) || turn(one) - turn(other)
  }

  #hold(project: string, amount: number): void {
    const held = (this.#held.get(project) ?? 0) + amount
    if (held > 0) this.#held.set(project, held)
    else this.#held.delete(project)
  }
}
