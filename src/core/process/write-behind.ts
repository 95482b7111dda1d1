import { isTransient } from '../db/database-errors.ts'
import { onSeparateConnection } from '../db/pool.ts'
import { isProjectDeleted } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { currentTriggerChain, withoutTriggerChain } from '../db/trigger-chain.ts'
import type { Logger } from './log.ts'

/** Rounds without a stored item, while the database is available, after which the oldest items are dropped. */
const MAX_ROUNDS = 10

export type WriteBehindOptions<T> = {
  /** Plural noun of the items, for the log. */
  what: string
  log: Logger
  /** Maximum buffered items; further items are dropped. */
  most: number
  /** Time the first item waits for others to share its statement. */
  gatherMs: number
  /** Maximum items per write. */
  batch: number
  retryMs: number
  /** Stores all items or none; `chainOf` returns the trigger chain of an item by its index. */
  write(items: T[], chainOf: (index: number) => readonly string[]): Promise<unknown>
  /** Called with the number of items that will never be stored. */
  dropped(count: number): void
}

type BufferedItem<T> = { item: T; chain: readonly string[] }

/**
 * A bounded write buffer for data that must not delay or fail the work it describes. Items remain in it, and count against
 * its size, until they are stored. While the database is unavailable they wait; items of a refused batch are written
 * individually, and refused items are dropped. A killed process loses its unstored items: while the database is available,
 * the items of the last `gatherMs` and of one write.
 */
export class WriteBehind<T> {
  readonly #options: WriteBehindOptions<T>
  #buffer: BufferedItem<T>[] = []
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

  /** Writes the buffered items, and drops those that cannot be stored now. */
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
    // The buffer contains items of all tenants: its writes inherit no transaction, tenant or trigger chain.
    const detached = <R>(work: () => R): R => onSeparateConnection(() => withoutTenant(() => withoutTriggerChain(work)))
    this.#timer = detached(() =>
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

  /** Writes the oldest items; returns false if they must be retried. */
  async #writeSome(): Promise<boolean> {
    const { batch, log, what } = this.#options
    const items = this.#buffer.slice(0, batch)
    const removeItems = () => {
      this.#buffer = this.#buffer.slice(items.length)
      this.#rounds = 0
      return true
    }
    try {
      await this.#write(items)
      return removeItems()
    } catch (error) {
      if (isTransient(error)) {
        log.warn({ err: error, items: items.length }, `write of ${what} postponed`)
        return false
      }
      const refused = await this.#writeIndividually(items)
      if (refused === null) return false
      if (refused.length < items.length || ++this.#rounds >= MAX_ROUNDS || refused.every(isProjectDeleted)) {
        const faults = refused.filter(reason => !isProjectDeleted(reason))
        if (faults.length > 0) log.error({ err: faults[0], items: faults.length }, `write of ${what} failed`)
        this.#options.dropped(refused.length)
        return removeItems()
      }
      log.warn({ err: error, items: items.length }, `write of ${what} postponed`)
      return false
    }
  }

  #write = (items: readonly BufferedItem<T>[]): Promise<unknown> =>
    this.#options.write(
      items.map(({ item }) => item),
      index => items[index].chain,
    )

  /** Writes items individually; returns the errors of refused items, or null if the database became unavailable. */
  async #writeIndividually(items: BufferedItem<T>[]): Promise<unknown[] | null> {
    const refused: unknown[] = []
    for (const [index, item] of items.entries()) {
      try {
        await this.#write([item])
      } catch (error) {
        if (isTransient(error)) {
          // Neither stored nor refused items are written again.
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
