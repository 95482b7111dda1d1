import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from '../base/log.ts'
import { Batcher } from './batcher.ts'
import { isTransient } from './database-errors.ts'
import { onSeparateConnection } from './pool.ts'
import { isProjectDeleted } from './sql.ts'
import { currentTriggerChain } from './trigger-chain.ts'

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

/** Result of one try: the errors of refused items, and the items not tried because the database was unavailable. */
type WriteResult<T> = { refused: unknown[]; remaining: BufferedItem<T>[]; error: unknown }

/**
 * A bounded write buffer for data that must not delay or fail the work it describes. Items remain in it, and count against
 * its size, until they are stored. While the database is unavailable they wait; items of a refused batch are written
 * individually, and refused items are dropped. A killed process loses its unstored items: while the database is available,
 * the items of the last `gatherMs` and of one write.
 */
export class WriteBehind<T> {
  readonly #options: WriteBehindOptions<T>
  readonly #batches: Batcher<BufferedItem<T>, undefined>
  readonly #closing = new AbortController()
  /** Whether a write failed after the close: further ones would only delay the end of the process. */
  #abandoned = false

  constructor(options: WriteBehindOptions<T>) {
    const { batch: max, gatherMs: delayMs } = options
    this.#options = options
    this.#batches = new Batcher(items => this.#writeBatch(items), { max, delayMs })
  }

  add(item: T): void {
    const { most, dropped } = this.#options
    const buffered = { item, chain: currentTriggerChain() }
    if (this.#batches.size >= most) dropped(1)
    else void onSeparateConnection(() => this.#batches.add(buffered))
  }

  /** Writes the buffered items, and drops those that cannot be stored now. */
  close(): Promise<void> {
    this.#closing.abort()
    return this.#batches.close()
  }

  /** Writes items until each is stored or dropped. */
  async #writeBatch(batch: BufferedItem<T>[]): Promise<undefined[]> {
    const { log, what, retryMs, dropped } = this.#options
    const { signal } = this.#closing
    let items = batch
    for (let rounds = 1; !this.#abandoned; ) {
      const { refused, remaining, error } = await this.#tryWrite(items)
      const faults = refused.filter(reason => !isProjectDeleted(reason))
      const isEachRefused = refused.length === items.length && faults.length > 0
      if (!isEachRefused || rounds++ >= MAX_ROUNDS) {
        if (faults.length > 0) log.error({ err: faults[0], items: faults.length }, `write of ${what} failed`)
        if (refused.length > 0) dropped(refused.length)
        items = remaining
      }
      if (items.length === 0) return []
      log.warn({ err: error, items: items.length }, `write of ${what} postponed`)
      if (signal.aborted) this.#abandoned = true
      else await sleep(retryMs, undefined, { signal }).catch(() => {})
    }
    dropped(items.length)
    return []
  }

  /** Writes items together or, if they are refused, individually. */
  async #tryWrite(items: BufferedItem<T>[]): Promise<WriteResult<T>> {
    const refused: unknown[] = []
    try {
      await this.#write(items)
      return { refused, remaining: [], error: null }
    } catch (error) {
      if (isTransient(error)) return { refused, remaining: items, error }
    }
    for (const [index, item] of items.entries()) {
      try {
        await this.#write([item])
      } catch (error) {
        if (isTransient(error)) return { refused, remaining: items.slice(index), error }
        refused.push(error)
      }
    }
    return { refused, remaining: [], error: refused[0] }
  }

  #write = (items: readonly BufferedItem<T>[]): Promise<unknown> =>
    this.#options.write(
      items.map(({ item }) => item),
      index => items[index].chain,
    )
}
