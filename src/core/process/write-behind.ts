import { isTransient } from '../db/database-errors.ts'
import { onSeparateConnection } from '../db/pool.ts'
import { isProjectDeleted } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { currentTriggerChain, withoutTriggerChain } from '../db/trigger-chain.ts'
import type { Logger } from './log.ts'

/** Rounds without any success, while the database answers, after which what waits at the front is dropped. */
const MAX_ROUNDS = 10

export type WriteBehindOptions<T> = {
  /** For the log: what the items are. */
  what: string
  log: Logger
  /** Most items that wait; what comes beyond them is dropped. */
  most: number
  /** How long the first item waits for others to share its statement. */
  gatherMs: number
  /** Most items of one write. */
  batch: number
  retryMs: number
  /** Stores items, all or none of them; `chainOf` gives the triggers that led to one of them, by its place. */
  write(items: T[], chainOf: (place: number) => readonly string[]): Promise<unknown>
  /** Told of items that will never be stored. */
  dropped(count: number): void
}

type Waiting<T> = { item: T; chain: readonly string[] }

/**
 * A bounded buffer in front of the database, for what must not hold up or fail the work that it is about. Items stay in it,
 * and count against its size, until they are stored. While the database is away they wait; what it refuses is tried alone,
 * so that one item takes no others along, and dropped. A process that is killed loses what it had not stored: with a
 * database at work, what came in the last `gatherMs` and one write.
 */
export class WriteBehind<T> {
  readonly #options: WriteBehindOptions<T>
  #buffer: Waiting<T>[] = []
  #timer: NodeJS.Timeout | undefined
  #writing: Promise<boolean> | null = null
  #rounds = 0
  #closed = false

  constructor(options: WriteBehindOptions<T>) {
    this.#options = options
  }

  add(item: T): void {
    if (this.#buffer.length >= this.#options.most) {
      this.#options.dropped(1)
      return
    }
    this.#buffer.push({ item, chain: currentTriggerChain() })
    this.#writeLater(this.#options.gatherMs)
  }

  /** Writes what is buffered; what cannot be stored now is dropped. */
  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#writing
    while (this.#buffer.length > 0) {
      if (await this.#writeSome()) continue
      this.#options.dropped(this.#buffer.length)
      this.#buffer = []
    }
  }

  #writeLater(ms: number): void {
    if (this.#closed || this.#timer || this.#writing) return
    const { batch, gatherMs, retryMs } = this.#options
    // The buffer holds work of all tenants, whosever came first and for what cause, and waits for nobody's transaction.
    const apart = <R>(work: () => R): R => onSeparateConnection(() => withoutTenant(() => withoutTriggerChain(work)))
    this.#timer = apart(() =>
      setTimeout(() => {
        this.#timer = undefined
        this.#writing = this.#writeSome()
        void this.#writing.then(stored => {
          this.#writing = null
          if (this.#buffer.length > 0) this.#writeLater(stored ? (this.#buffer.length < batch ? gatherMs : 0) : retryMs)
        })
      }, ms),
    )
  }

  /** Writes the oldest items; false when nothing could be done now. */
  async #writeSome(): Promise<boolean> {
    const { batch, log, what } = this.#options
    const items = this.#buffer.slice(0, batch)
    const done = (count = items.length) => {
      this.#buffer = this.#buffer.slice(count)
      this.#rounds = 0
      return true
    }
    try {
      await this.#write(items)
      return done()
    } catch (error) {
      if (isTransient(error)) {
        log.warn({ err: error, items: items.length }, `${what} not written yet`)
        return false
      }
      const refused = await this.#writeAlone(items)
      if (refused === null) return false
      if (refused.length < items.length || ++this.#rounds >= MAX_ROUNDS || refused.every(isProjectDeleted)) {
        const faults = refused.filter(reason => !isProjectDeleted(reason))
        if (faults.length > 0) log.error({ err: faults[0], items: faults.length }, `${what} not written`)
        this.#options.dropped(refused.length)
        return done()
      }
      log.warn({ err: error, items: items.length }, `${what} not written yet`)
      return false
    }
  }

  #write = (waiting: readonly Waiting<T>[]): Promise<unknown> =>
    this.#options.write(
      waiting.map(({ item }) => item),
      place => waiting[place].chain,
    )

  /** Writes items one by one; answers why some were refused, or null when the database went away. */
  async #writeAlone(items: Waiting<T>[]): Promise<unknown[] | null> {
    const refused: unknown[] = []
    for (const [index, item] of items.entries()) {
      try {
        await this.#write([item])
      } catch (error) {
        if (isTransient(error)) {
          // What was stored is not stored again, and what was refused not tried again.
          if (refused.length > 0) this.#options.dropped(refused.length)
          this.#buffer = this.#buffer.slice(index)
          return null
        }
        refused.push(error)
      }
    }
    return refused
  }
}
